// tandem report: HTML and Markdown from results files.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "cli/commands.h"
#include "cli/files/files.h"
#include "cli/ops/ops.h"
#include "cli/report/front.h"
#include "cli/report/host.h"
#include "cli/report/html.h"
#include "cli/report/markdown.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

struct ReportOptions {
  std::string root = ".";
  std::string results;
  std::string iterations;
  std::string out;
  std::vector<std::string> files;
  bool markdown = false;
  bool check = false;

  std::string results_folder() const { return results.empty() ? root + "/bench/results" : results; }
};

/// Reads a file of whatever folder: its device is that of its latest run.
ReportFile load_named(const std::string& path) {
  ReportFile file = load_file(path);
  for (const ReportRun& run : file.runs) {
    const std::string device = text_of(run.json.value("device", Json::object()), "name");
    if (!device.empty()) file.device = device;
  }
  return file;
}

/// The files named; the folder's where it is named or none of them is.
std::vector<ReportFile> load(const ReportOptions& options) {
  std::vector<ReportFile> files;
  std::vector<std::string> searched = options.files;
  for (const std::string& path : options.files) files.push_back(load_named(path));
  if (options.files.empty() || !options.results.empty()) {
    searched.push_back(options.results_folder());
    for (ReportFile& file : load_results(searched.back())) files.push_back(std::move(file));
  }
  const bool rows = std::any_of(files.begin(), files.end(),
                                [](const ReportFile& file) { return !file.rows.empty(); });
  if (rows) return files;
  throw std::runtime_error(
      fmt::format("nothing to report: no row of results in {}", fmt::join(searched, ", ")));
}

void report(const ReportOptions& options) {
  if (options.out.empty() && !options.markdown && !options.check) {
    throw CLI::ValidationError("report", "say what to write: --out FILE, --markdown, or --check");
  }
  const std::string iterations =
      options.iterations.empty() ? options.root + "/docs/ops" : options.iterations;
  const std::vector<ReportFile> files = load(options);
  if (!options.out.empty()) {
    write_file(options.out, html_report(files, load_iterations(iterations)));
    fmt::print("written: {}\n", options.out);
  }
  if (!options.markdown && !options.check) return;
  std::vector<std::string> stale;
  const auto update = [&](const std::string& name, const std::string& block,
                          const std::string& marks = "results") {
    const std::string path = options.root + "/" + name;
    const std::string text = read_text(path);
    const std::string wanted = with_block(text, block, path, marks);
    if (wanted == text) return;
    stale.push_back(name + (marks == "results" ? "" : ", its " + marks));
    if (!options.check) write_file(path, wanted);
  };
  update("README.md", front_block(files));
  update("docs/results.md", markdown_block(files));
  for (const PageBlock& block : page_blocks()) {
    if (!std::filesystem::exists(options.root + "/" + block.page)) continue;
    update(block.page, block.render(files));
  }
  const std::vector<ReportFile> host = load_host(options.results_folder());
  if (std::filesystem::exists(options.root + "/docs/host.md")) {
    update("docs/host.md", host_block(host));
  }
  for (const auto& [op, lines] : load_iterations(iterations)) {
    const std::string name = "docs/ops/" + op + ".log.md";
    if (std::filesystem::exists(options.root + "/" + name)) {
      update(name, markdown_iterations(lines), "iterations");
    }
  }
  std::vector<std::string> repeated = repeated_runs(files);
  std::ranges::move(repeated_runs(host), std::back_inserter(repeated));
  for (const std::string& text : repeated) fmt::print("{}\n", text);
  if (options.check && !repeated.empty()) throw Failed{};
  if (stale.empty()) {
    fmt::print("tables are up to date\n");
  } else if (options.check) {
    fmt::print("not up to date with {}: {} (tandem report --markdown)\n", options.results_folder(),
               fmt::join(stale, ", "));
    throw Failed{};
  } else {
    fmt::print("written: {}\n", fmt::join(stale, ", "));
  }
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("report", "HTML and Markdown from results files and tuning logs");
  const auto options = std::make_shared<ReportOptions>();
  CLI::Option* files =
      command->add_option("files", options->files, "results files, instead of a folder of them")
          ->check(CLI::ExistingFile);
  command->add_option("--root", options->root, "the checkout")->capture_default_str();
  command
      ->add_option("--results", options->results,
                   "folder of <device>/<op>.json (default: bench/results of the checkout)")
      ->check(CLI::ExistingDirectory);
  command
      ->add_option("--iterations", options->iterations,
                   "folder of <op>.iterations.jsonl (default: docs/ops of the checkout)")
      ->check(CLI::ExistingDirectory);
  command->add_option("--out", options->out, "write this HTML file, which needs no other");
  command
      ->add_flag("--markdown", options->markdown,
                 "write the tables of README.md, docs/results.md, docs/host.md and docs/ops, "
                 "between their <!-- results --> and <!-- iterations --> marks")
      ->excludes(files);
  command
      ->add_flag("--check", options->check,
                 "write no Markdown, and fail when a table is not up to date or two files of a "
                 "device use one id of a run")
      ->excludes(files);
  command->footer(
      "A row shows the latest run that timed the case. A ratio is of two times of one run, which "
      "is named\nwhere it is not the row's. A click on a column's title sorts the page's tables.\n"
      "Examples: tandem report --results bench/results --out report.html --markdown\n"
      "          tandem report results.json --out report.html");
  command->callback([options] { report(*options); });
}

}  // namespace tandem::tools
