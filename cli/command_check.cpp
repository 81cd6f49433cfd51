// tandem check: every case on every variant that accepts it, against the fp64 definition.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/commands.h"
#include "cli/progress.h"

namespace tandem::tools {
namespace {

struct CheckOptions : CaseOptions {
  bool quick = false;
  bool verbose = false;
};

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

void print_result(const CheckResult& result) {
  const char* word = result.outcome == Outcome::kPassed   ? "passed"
                     : result.outcome == Outcome::kFailed ? "FAILED"
                                                          : "skipped";
  const std::string detail = result.detail.empty() ? describe(result.errors) : result.detail;
  fmt::print("{:<7} {:<16} {:<30} {:<4} {:<34} {}\n", word, result.direction, result.case_name,
             to_string(result.dtype), where(result), detail);
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

void check(const CheckOptions& options) {
  std::vector<Device> devices = backends(options.backend);
  if (options.backend.empty() && devices.size() == 1) {
    fmt::print(stderr, "cuda is not checked: {}\n", cuda_missing_reason());
  }
  CaseOptions selection = options;
  if (options.quick && selection.tag.empty()) selection.tag = "check";
  const auto cases = selection.select();
  Tallies tallies;
  int counts[3] = {};
  Progress progress(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [operation, one] = cases[i];
    progress.show(i, one.name);
    for (const DType dtype : one.dtypes) {
      for (const CheckResult& result : check_case(*operation, one, dtype, devices, options.seed)) {
        ++counts[static_cast<int>(result.outcome)];
        if (!result.variant.empty()) {
          tallies[{title(*operation), where(result), dtype}].add(result);
        }
        if (result.outcome == Outcome::kFailed || options.verbose) {
          progress.clear();
          print_result(result);
        }
      }
    }
  }
  progress.clear();
  print_tallies(tallies);
  fmt::print("{} passed, {} failed, {} skipped\n", counts[0], counts[1], counts[2]);
  if (counts[1] > 0) throw Failed{};
}

}  // namespace

void add_check(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("check", "Check every case and variant against the fp64 definition");
  const auto options = std::make_shared<CheckOptions>();
  options->add_to(*command);
  command->add_flag("--quick", options->quick, "only the cases tagged check: no large ones");
  command->add_flag("--verbose", options->verbose,
                    "a line for every result, not only for failures");
  command->footer(
      "Exits with 1 when a result failed.\n"
      "Examples: tandem check --quick\n"
      "          tandem check gla --backend cuda --case 'varlen_*' --seed 7 --verbose");
  command->callback([options] { check(*options); });
}

}  // namespace tandem::tools
