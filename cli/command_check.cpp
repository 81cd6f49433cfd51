// tandem check: every case on every variant that accepts it, against the fp64 definition.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <tuple>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/cases/random_case.h"
#include "cli/commands.h"
#include "cli/progress.h"

namespace tandem::tools {
namespace {

struct CheckOptions : CaseOptions {
  bool quick = false;
  double random_minutes = 0;
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

/// What came of all checks so far.
class Report {
 public:
  explicit Report(bool verbose) : verbose_(verbose) {}

  void add(const Operation& operation, const CheckResult& result, Progress& progress) {
    ++counts_[static_cast<int>(result.outcome)];
    if (!result.variant.empty()) {
      tallies_[{title(operation), where(result), result.dtype}].add(result);
    }
    if (result.outcome == Outcome::kFailed || verbose_) {
      progress.clear();
      print_result(result);
    }
  }
  void end() const {
    print_tallies(tallies_);
    fmt::print("{} passed, {} failed, {} skipped\n", counts_[0], counts_[1], counts_[2]);
    if (counts_[1] > 0) throw Failed{};
  }

 private:
  bool verbose_;
  Tallies tallies_;
  int counts_[3] = {};
};

void check_table(const CheckOptions& options, const std::vector<Device>& devices) {
  CaseOptions selection = options;
  if (options.quick && selection.tag.empty()) selection.tag = "check";
  const auto cases = selection.select();
  Report report(options.verbose);
  Progress progress(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [operation, one] = cases[i];
    progress.show(i, one.name);
    for (const DType dtype : one.dtypes) {
      for (const CheckResult& result : check_case(*operation, one, dtype, devices, options.seed)) {
        report.add(*operation, result, progress);
      }
    }
  }
  progress.clear();
  report.end();
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
  constexpr std::int64_t kLargest = std::int64_t{1} << 22;  // a definition of some 10 ms
  const RandomStream seeds(options.seed, "check");
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Report report(options.verbose);
  Progress progress(static_cast<std::size_t>(60 * options.random_minutes));
  for (std::uint64_t i = 0; i < selected.size() || seconds() < 60 * options.random_minutes; ++i) {
    const Operation& operation = *selected[i % selected.size()];
    const std::uint64_t seed = seeds.bits(i) >> 32;
    progress.show(static_cast<std::size_t>(seconds()), fmt::format("s, {} cases", i));
    const DType dtype = dtypes[i / selected.size() % dtypes.size()];
    const Case one = draw_case(operation.name, operation.direction, dtype, kLargest, seed);
    bool failed = false;
    for (const CheckResult& result : check_case(operation, one, dtype, devices, options.seed)) {
      report.add(operation, result, progress);
      failed = failed || result.outcome == Outcome::kFailed;
    }
    if (failed) {
      fmt::print("  again: tandem check {} --cases FILE --seed {}, with this in FILE:\n{}",
                 operation.name, options.seed, write_cases(operation.name, {one}));
    }
  }
  progress.clear();
  report.end();
}

void check(const CheckOptions& options) {
  const std::vector<Device> devices = backends(options.backend);
  if (options.backend.empty() && devices.size() == 1) {
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
  command->add_flag("--quick", options->quick, "only the cases tagged check: no large ones");
  command->add_flag("--verbose", options->verbose,
                    "a line for every result, not only for failures");
  command
      ->add_option(
          "--random", options->random_minutes,
          "instead of the table's, random cases by the seed for so many minutes; a failure "
          "prints the case")
      ->check(CLI::PositiveNumber)
      ->excludes("--case", "--tag", "--cases", "--quick");
  command->footer(
      "Exits with 1 when a result failed.\n"
      "Examples: tandem check --quick\n"
      "          tandem check gla --backend cuda --case 'varlen_*' --seed 7 --verbose");
  command->callback([options] { check(*options); });
}

}  // namespace tandem::tools
