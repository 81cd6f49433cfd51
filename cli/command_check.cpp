// tandem check: every case on every variant that accepts it, against the fp64 definition.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/build_info.h"
#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/cases/random_case.h"
#include "cli/commands.h"
#include "cli/progress.h"

namespace tandem::tools {
namespace {

struct CheckOptions : CaseOptions {
  bool quick = false;
  bool all = false;
  std::string dtype;
  bool once = false;
  double random_minutes = 0;
  bool verbose = false;
  bool json = false;
};

volatile std::sig_atomic_t g_stopped = 0;

/// Lets the first Ctrl-C end the check behind the case under way, so that what came of it so far is
/// told; a second one ends the program at once.
void stop_behind_a_case() {
  const auto before = std::signal(SIGINT, [](int) {
    g_stopped = 1;
    std::signal(SIGINT, SIG_DFL);
    constexpr std::string_view kText = "\nends behind this case; Ctrl-C again: at once\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
  });
  if (before == SIG_IGN) std::signal(SIGINT, SIG_IGN);  // as a job in the background has it
}

/// Ends the program as Ctrl-C does where nothing catches it: a shell's loop around it ends too.
[[noreturn]] void end_as_stopped() {
  std::fflush(nullptr);
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  throw Failed{};
}

/// Work of a case's check, in units that take about the same time each: elements of what the
/// definition walks, and some for each call however small.
double work_of(const Case& one) {
  constexpr double kCalls = 1e7;
  double elements = 1;
  for (const auto& [axis, extent] : one.axes) {
    if (axis != "HQ") elements *= std::max<double>(static_cast<double>(extent), 1);
  }
  return static_cast<double>(one.dtypes.size()) * (kCalls + elements);
}

/// Tally of a variant in a direction, over all cases of a dtype.
struct Tally {
  int passed = 0;
  int failed = 0;
  std::map<std::string, double> worst;  // by output

  void add(const CheckResult& result) {
    (result.outcome == Outcome::kPassed ? passed : failed) += 1;
    for (const OutputError& error : result.errors) {
      double& worst_so_far = worst[error.output];
      if (!(error.value <= worst_so_far)) worst_so_far = error.value;
    }
  }
};

/// Returns the variant, which names its backend, or else the backend.
std::string where(const CheckResult& result) {
  if (result.variant.empty()) return result.backend;
  return result.variant == kLibraryChoice ? result.backend + ", " + result.variant : result.variant;
}

const char* word_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed: return "passed";
    case Outcome::kFailed: return "failed";
    default: return "skipped";
  }
}

void print_result(const CheckResult& result) {
  const std::string detail = result.detail.empty() ? describe(result.errors) : result.detail;
  fmt::print("{:<7} {:<16} {:<30} {:<4} {:<34} {}\n",
             result.outcome == Outcome::kFailed ? "FAILED" : word_of(result.outcome),
             result.direction, result.case_name, to_string(result.dtype), where(result), detail);
  std::fflush(stdout);
}

using Tallies = std::map<std::tuple<std::string, std::string, DType>, Tally>;

void print_tallies(const Tallies& tallies) {
  for (const auto& [key, tally] : tallies) {
    const auto& [entry, variant, dtype] = key;
    std::string worst;
    for (const auto& [output, value] : tally.worst)
      worst += fmt::format("  {} {:.1e}", output, value);
    fmt::print("{:<20} {:<44} {:<4} {:>4} passed {:>4} failed  worst{}\n", entry, variant,
               to_string(dtype), tally.passed, tally.failed, worst);
  }
}

nlohmann::ordered_json to_json(const Operation& operation, const CheckResult& result) {
  nlohmann::ordered_json json = {{"op", operation.name},
                                 {"direction", result.direction},
                                 {"case", result.case_name},
                                 {"dtype", to_string(result.dtype)},
                                 {"backend", result.backend},
                                 {"variant", result.variant},
                                 {"outcome", word_of(result.outcome)},
                                 {"detail", result.detail},
                                 {"errors", nlohmann::ordered_json::array()}};
  for (const OutputError& error : result.errors) {
    json["errors"].push_back({{"output", error.output},
                              {"value", error.value},
                              {"limit", error.limit},
                              {"worst_head", error.worst_head},
                              {"head_limit", error.head_limit()}});
  }
  return json;
}

/// What came of all checks so far.
class Report {
 public:
  /// With `as_lines`, of --json, somebody else prints every result as it comes.
  explicit Report(const CheckOptions& options, bool as_lines = false)
      : options_(options), as_lines_(as_lines) {}

  void add(const Operation& operation, const CheckResult& result, Progress& progress) {
    ++counts_[static_cast<int>(result.outcome)];
    if (as_lines_) return;
    if (options_.json) {
      results_.push_back(to_json(operation, result).dump());
      return;
    }
    if (!result.variant.empty()) {
      tallies_[{title(operation), where(result), result.dtype}].add(result);
    }
    if (result.outcome == Outcome::kFailed || options_.verbose) {
      progress.clear();
      print_result(result);
    }
  }

  /// Tells all of it; ends the program where Ctrl-C was pressed, and throws where a check failed.
  void end() const {
    if (!as_lines_) options_.json ? print_json() : print_text();
    if (g_stopped) end_as_stopped();
    if (counts_[1] > 0) throw Failed{};
  }

 private:
  void print_text() const {
    print_tallies(tallies_);
    fmt::print("{} passed, {} failed, {} skipped{}\n", counts_[0], counts_[1], counts_[2],
               g_stopped ? "; stopped before the end" : "");
  }
  void print_json() const {
    fmt::print("{{\"commit\": {}, \"seed\": {}, \"stopped\": {},\n", nlohmann::json(kCommit).dump(),
               options_.seed, g_stopped != 0);
    fmt::print(" \"passed\": {}, \"failed\": {}, \"skipped\": {},\n", counts_[0], counts_[1],
               counts_[2]);
    fmt::print(" \"results\": [\n  {}\n ]}}\n", fmt::join(results_, ",\n  "));
  }

  const CheckOptions& options_;
  bool as_lines_;
  Tallies tallies_;
  std::vector<std::string> results_;  // as JSON
  int counts_[3] = {};
};

/// The cases that the command line picks; where it says nothing of them, on the CPU alone those
/// tagged check: the large ones take many times as long there.
std::vector<Selected> selected(const CheckOptions& options, const std::vector<Device>& devices) {
  CaseOptions selection = options;
  const bool on_cpu = devices.size() == 1 && devices.front().type == DeviceType::kCpu;
  const bool quick = options.quick || (on_cpu && !options.all && !options.names_cases());
  if (quick) selection.tag = "check";
  if (quick && !options.quick && !options.list) {
    fmt::print(stderr,
               "on the CPU alone: only the cases tagged check; --all takes the large ones too\n");
  }
  std::vector<Selected> cases = selection.select();
  if (options.dtype.empty()) return cases;
  for (Selected& selected : cases) {
    std::erase_if(selected.one.dtypes,
                  [&](DType dtype) { return to_string(dtype) != options.dtype; });
  }
  std::erase_if(cases, [](const Selected& selected) { return selected.one.dtypes.empty(); });
  if (cases.empty()) throw CLI::ValidationError("--dtype", "no case in " + options.dtype);
  return cases;
}

void check_table(const CheckOptions& options, const std::vector<Device>& devices) {
  const auto cases = selected(options, devices);
  if (options.list) return print_cases(cases);
  stop_behind_a_case();
  double total = 0, done = 0;
  for (const auto& [operation, one] : cases) total += work_of(one);
  Report report(options);
  Progress progress(total);
  for (std::size_t i = 0; i < cases.size() && !g_stopped; ++i) {
    const auto& [operation, one] = cases[i];
    progress.show(done, fmt::format("{}/{}", i + 1, cases.size()),
                  fmt::format("{} {}", title(*operation), one.name));
    done += work_of(one);
    for (const DType dtype : one.dtypes) {
      for (const CheckResult& result :
           check_case(*operation, one, dtype, devices, options.seed, options.once)) {
        report.add(*operation, result, progress);
      }
    }
  }
  progress.clear();
  report.end();
}

/// Prints a random case's result as a line of JSON; of a failed one with the case.
void print_line(const Operation& operation, const CheckResult& result, const Case& one,
                std::uint64_t seed) {
  nlohmann::ordered_json json = to_json(operation, result);
  json["seed"] = seed;
  if (result.outcome == Outcome::kFailed) {
    json["cases"] = nlohmann::ordered_json::parse(write_cases(operation.name, {one}));
  }
  fmt::print("{}\n", json.dump());
}

/// Checks random cases, one entry after the other in turn, until the time is over.
void check_random(const CheckOptions& options, const std::vector<Device>& devices) {
  std::vector<const Operation*> selected;
  for (const Operation& operation : operations()) {
    if ((options.op.empty() || options.op == operation.name) &&
        (options.direction.empty() || options.direction == operation.direction)) {
      selected.push_back(&operation);
    }
  }
  if (selected.empty()) throw CLI::ValidationError("--random", "there is no such entry");
  std::vector<DType> dtypes = {DType::kBFloat16, DType::kFloat16};
  if (devices.front().type == DeviceType::kCpu) dtypes.push_back(DType::kFloat32);
  const RandomStream seeds(options.seed, "check");
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  stop_behind_a_case();
  Report report(options, options.json);
  Progress progress(60 * options.random_minutes);
  for (std::uint64_t i = 0;
       (i < selected.size() || seconds() < 60 * options.random_minutes) && !g_stopped; ++i) {
    const Operation& operation = *selected[i % selected.size()];
    const std::uint64_t seed = seeds.bits(i) >> 32;
    progress.show(seconds(), fmt::format("{} random cases", i), title(operation));
    const DType dtype = dtypes[i / selected.size() % dtypes.size()];
    const Case one =
        draw_case(operation.name, operation.direction, dtype, kLargestRandomCase, seed);
    bool failed = false;
    for (const CheckResult& result : check_case(operation, one, dtype, devices, options.seed)) {
      report.add(operation, result, progress);
      if (options.json) print_line(operation, result, one, options.seed);
      failed = failed || result.outcome == Outcome::kFailed;
    }
    if (options.json) std::fflush(stdout);
    if (failed && !options.json) {
      fmt::print("  again: tandem check {} --cases FILE --seed {}, with this in FILE:\n{}",
                 operation.name, options.seed, write_cases(operation.name, {one}));
    }
  }
  progress.clear();
  report.end();
}

void check(const CheckOptions& options) {
  const std::vector<Device> devices = backends(options.backend);
  if (options.backend.empty() && devices.size() == 1 && !options.list) {
    fmt::print(stderr, "cuda is not checked: {}\n", cuda_missing_reason());
  }
  if (options.random_minutes > 0) {
    check_random(options, devices);
  } else {
    check_table(options, devices);
  }
}

}  // namespace

void add_check(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("check", "Check every case and variant against the fp64 definition");
  const auto options = std::make_shared<CheckOptions>();
  options->add_to(*command);
  CLI::Option* quick =
      command->add_flag("--quick", options->quick,
                        "only the cases tagged check: no large ones (default on the CPU alone)");
  quick->excludes("--tag");
  command->add_flag("--all", options->all, "the large cases too (default with a GPU)")
      ->excludes(quick)
      ->excludes("--tag");
  command->add_option("--dtype", options->dtype, "only this dtype (default: all of each case)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32", "fp64"}));
  command->add_flag("--once", options->once,
                    "each call once, so that neither equal bits nor reads of unwritten memory are "
                    "checked: for slow tools around it");
  CLI::Option* verbose = command->add_flag("--verbose", options->verbose,
                                           "a line for every result, not only for failures");
  command
      ->add_flag("--json", options->json,
                 "every result, as JSON, on standard output at the end; with --random a line each "
                 "as it comes")
      ->excludes(verbose);
  command
      ->add_option(
          "--random", options->random_minutes,
          "instead of the table's, random cases by the seed for so many minutes; a failure "
          "prints the case")
      ->check(CLI::PositiveNumber)
      ->excludes("--case", "--tag", "--cases", "--quick", "--all", "--list", "--dtype", "--once");
  command->footer(
      "Exits with 1 when a result failed. Ctrl-C ends it behind the case under way and tells what "
      "came of\nthose before; a second one ends it at once.\n"
      "Examples: tandem check gla\n"
      "          tandem check gla --backend cuda --case 'varlen_*' --seed 7 --verbose");
  command->callback([options] { check(*options); });
}

}  // namespace tandem::tools
