// tandem cases: the cases of an op, expanded. Python reads them with --json.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "cli/commands.h"

namespace tandem::tools {
namespace {

struct CasesOptions {
  std::string op, globs, tag, file;
  bool json = false;
};

/// "B1 T131072 H16 HQ16 K128 V128 N1000": N sequences where they are packed.
std::string shape_of(const Case& one) {
  std::string text;
  for (const char* axis : {"B", "T", "TK", "M", "H", "HQ", "HKV", "K", "V", "d", "D"}) {
    if (one.axes.count(axis) != 0) text += fmt::format("{}{} ", axis, one.axis(axis));
  }
  if (one.cu_seqlens) return text + fmt::format("N{}", one.cu_seqlens->size() - 1);
  text.pop_back();
  return text;
}

/// Prints rows as columns, as wide as their longest cell.
void print_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.resize(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

void list(const CasesOptions& options) {
  std::vector<Case> cases = load_cases(options.op, options.file);
  if (!options.globs.empty() || !options.tag.empty()) {
    cases = select_cases(std::move(cases), options.globs, options.tag);
    if (cases.empty()) throw CLI::ValidationError("--case", "no such case");
  }
  if (options.json) {
    fmt::print("{}", write_cases(options.op, cases));
    return;
  }
  print_cases(cases);
}

}  // namespace

void print_cases(const std::vector<Case>& cases) {
  std::vector<std::vector<std::string>> rows = {{"name", "directions", "dtypes", "shape", "tags"}};
  for (const Case& one : cases) {
    std::vector<std::string> dtypes;
    for (const DType dtype : one.dtypes) dtypes.push_back(to_string(dtype));
    rows.push_back({one.name, fmt::format("{}", fmt::join(one.directions, ",")),
                    fmt::format("{}", fmt::join(dtypes, ",")), shape_of(one),
                    fmt::format("{}", fmt::join(one.tags, ","))});
  }
  print_columns(rows);
}

void print_cases(const std::vector<Selected>& selected) {
  std::map<std::string, std::vector<Case>> cases;  // by op
  for (const auto& [operation, one] : selected) {
    std::vector<Case>& of_op = cases[operation->name];
    auto known = std::ranges::find(of_op, one.name, &Case::name);
    if (known == of_op.end()) {
      known = of_op.insert(known, one);
      known->directions.clear();
    }
    known->directions.push_back(operation->direction);
  }
  for (const auto& [op, of_op] : cases) {
    fmt::print("{}\n", op);
    print_cases(of_op);
  }
}

void add_cases(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "cases", "The cases of an op, with lists and ranges expanded and lengths drawn");
  const auto options = std::make_shared<CasesOptions>();
  command->add_option("op", options->op, "the op")->required()->check(known_op());
  command->add_option("--case", options->globs,
                      "only cases whose name matches a glob of this list by comma");
  command->add_option("--tag", options->tag, "only cases with this tag")
      ->check(CLI::IsMember(tag_names()));
  command->add_option("--file", options->file, "a case table to use instead of the built-in one")
      ->check(CLI::ExistingFile);
  command->add_flag("--json", options->json,
                    "a table of single cases, every default spelled out (cli/cases/cases.h)");
  command->footer(
      "With --case or --tag the cases that check and bench would take; without, all of them.\n"
      "Example: tandem cases gla --tag bench");
  command->callback([options] { list(*options); });
}

}  // namespace tandem::tools
