// tandem bench: times every case, each result checked first.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/build_info.h"
#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/calls/judge.h"
#include "cli/calls/measure.h"
#include "cli/commands.h"
#include "cli/recorded_command.h"
#include "cli/report/results.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

struct BenchOptions : CaseOptions {
  std::string dtype;
  int replays = 50;
  std::string json;
  std::string run;
  std::string variant;
  std::string provider;
  bool once = false;
  bool host = false;
  bool no_unfused = false;
};

/// NVML's throttle reasons that are no slowdown: idle, and clocks that someone chose.
constexpr unsigned long long kHarmlessThrottle = 0x1 | 0x2 | 0x100;

void print_header() {
  fmt::print("{:<20} {:<24} {:<5} {:<7} {:>10} {:>10} {:>10} {:>10} {:>6} {:>8} {:>7} {:>8}\n",
             "op", "case", "dtype", "backend", "median_us", "p10_us", "p90_us", "floor_us", "ratio",
             "TFLOP/s", "TB/s", "error");
}

/// Returns the columns of a row that every kind of bench has.
std::string row_head(const ResultsRow& row, Device device) {
  return fmt::format("{:<20} {:<24} {:<5} {:<7} {:>10.1f} {:>10.1f} {:>10.1f}",
                     row.op + " " + row.direction, row.case_name, row.dtype, backend_name(device),
                     row.timing.median_us, row.timing.p10_us, row.timing.p90_us);
}

void print_host_header() {
  fmt::print("{:<20} {:<24} {:<5} {:<7} {:>10} {:>10} {:>10} {:>10}\n", "op", "case", "dtype",
             "backend", "median_us", "p10_us", "p90_us", "plan_us");
}

void print_host_row(const ResultsRow& row, Device device) {
  fmt::print("{} {:>10.2f}  {}\n", row_head(row, device), row.plan_us.value_or(0), row.variant);
  std::fflush(stdout);
}

/// Returns TFLOP/s; "" where an op has no matrix work.
std::string rate_text(double flops, double us) {
  return flops > 0 ? fmt::format("{:.2f}", flops / us * 1e-6) : "";
}

void print_row(const ResultsRow& row, Device device) {
  const double us = row.timing.median_us;
  fmt::print("{} {:>10.1f} {:>6.2f} {:>8} {:>7.3f} {:>8.1e}", row_head(row, device), row.floor_us,
             us / row.floor_us, rate_text(row.cost.flops, us), row.cost.bytes / us * 1e-6,
             row.error);
  if (row.state.known) fmt::print("  {} MHz {} W", row.state.sm_clock_mhz, row.state.power_w);
  if (row.state.known && (row.state.throttle_reasons & ~kHarmlessThrottle) != 0) {
    fmt::print(" THROTTLED {:#x}", row.state.throttle_reasons);
  }
  fmt::print("  {}\n", row.variant);
  std::fflush(stdout);
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options) {}

  void run() {
    const auto devices = backends_of(options_.provider, options_.backend);
    check_variant_name(devices);
    auto selected = selection().select();
    if (!options_.json.empty()) read_results(options_.json);  // what is wrong there, before timing
    for (const Device device : devices) {
      results_.reset();
      if (options_.host) {
        print_host(device);
      } else if (!options_.once) {
        print_device(device);
      }
      for (const auto& [operation, one] : selected) {
        if (!options_.variant.empty() && !has_variant(*operation, options_.variant)) continue;
        if (!has_provider(*operation, options_.provider)) continue;
        for (const DType dtype : one.dtypes) {
          if (!options_.dtype.empty() && to_string(dtype) != options_.dtype) continue;
          bench(*operation, one, dtype, device);
        }
      }
    }
    if (failed_) throw Failed{};
  }

 private:
  CaseOptions selection() const {
    CaseOptions selection = options_;
    if (selection.tag.empty() && selection.glob.empty()) {
      selection.tag = options_.host ? "host" : "bench";
    }
    return selection;
  }

  void check_variant_name(const std::vector<Device>& devices) const {
    if (options_.variant.empty()) return;
    for (const Device device : devices) {
      for (const VariantInfo& variant : variants(device_properties(device))) {
        if (variant.name == options_.variant) return;
      }
    }
    throw CLI::ValidationError("--variant", "no such variant here: " + options_.variant);
  }

  void print_device(Device device) const {
    const Ceilings& top = ceilings(device);
    fmt::print("{}: {}, copy {:.3f} TB/s, matrix products {:.2f} TFLOP/s, {}\n", to_string(device),
               device_name(device), top.copy_tbps, top.bf16_tflops,
               device.type == DeviceType::kCpu ? "steady clock" : "CUDA graph, cold L2");
    print_header();
  }

  void print_host(Device device) const {
    fmt::print("{}: {}, {}{}\n", to_string(device), device_name(device), host_timer(),
               device.type == DeviceType::kCpu ? "; a call's time is all of it" : "");
    print_host_header();
  }

  void bench(const Operation& operation, const Case& one, DType dtype, Device device) {
    const TensorSet set = operation.make(one, dtype, options_.seed);
    if (wants("tandem")) {
      bench(with_variant(operation, options_.variant), set, one, dtype, device, nullptr);
    }
    if (device.type != DeviceType::kCuda || !options_.variant.empty()) return;
    for (const Baseline& baseline : operation.baselines) {
      if (!wants(baseline.provider)) continue;
      const Operation instead = with_baseline(operation, baseline);
      if (baseline.forgoes.empty()) {
        bench(instead, set, one, dtype, device, &baseline);
      } else {
        bench(instead, instead.make(one, dtype, options_.seed), one, dtype, device, &baseline);
      }
    }
  }

  bool wants(const std::string& provider) const {
    if (!options_.provider.empty()) return options_.provider == provider;
    return provider == "tandem" || !(options_.once || options_.host || options_.no_unfused);
  }

  /// Measures one provider; a null `baseline` is Tandem's own call.
  void bench(const Operation& operation, const TensorSet& set, const Case& one, DType dtype,
             Device device, const Baseline* baseline) {
    try {
      if (options_.once) {
        run_once(operation, set, one, device);
      } else {
        time(operation, set, one, dtype, device, baseline);
      }
    } catch (const Unsupported& error) {
      fmt::print("{:<20} {:<24} {:<5} {:<7} {} unsupported: {}\n", title(operation), one.name,
                 to_string(dtype), backend_name(device),
                 baseline == nullptr ? "tandem" : baseline->provider, error.what());
    }
  }

  void run_once(const Operation& operation, const TensorSet& set, const Case& one, Device device) {
    Placement placement(set, device);
    operation.call(set, placement.bases(), device, {});
    if (device.type == DeviceType::kCuda) gpu::synchronize(device.index);
    fmt::print("{} {} ran once\n", title(operation), one.name);
  }

  void time(const Operation& operation, const TensorSet& set, const Case& one, DType dtype,
            Device device, const Baseline* baseline) {
    ResultsRow row;
    if (baseline != nullptr) row.provider = baseline->provider;
    {
      Placement placement(set, device);
      if (baseline != nullptr) {
        operation.call(set, placement.bases(), device, {});
        row.variant = baseline->variant;
      } else if (options_.variant.empty()) {
        row.variant = chosen_variant(operation, set, placement);
      } else {
        operation.call(set, placement.bases(), device, {});
        row.variant = options_.variant;
      }
      const auto errors = operation.expect(set, true)->compare(set, placement.download());
      for (const OutputError& error : errors) {
        row.error = std::max(row.error, error.value);
        if (error.passed) continue;
        if (baseline != nullptr && error.value <= baseline_limit(error.limit, dtype)) continue;
        failed_ = true;
        fmt::print("{:<20} {:<24} {:<5} {:<7} WRONG, not timed: {}  {}\n", title(operation),
                   one.name, to_string(dtype), backend_name(device), describe(errors), row.variant);
        return;
      }
    }
    row.op = operation.name;
    row.direction = operation.direction;
    row.case_name = one.name;
    row.dtype = to_string(dtype);
    if (options_.host) {
      const HostTiming host = time_host(operation, set, device, options_.replays);
      row.timing = host.call;
      row.plan_us = host.plan.median_us;
    } else {
      row.cost = operation.cost(set);
      row.floor_us = floor_us(row.cost, ceilings(device));
      row.timing = time_call(operation, set, device, options_.replays);
    }
    if (device.type == DeviceType::kCuda) row.state = gpu::state(device.index);
    options_.host ? print_host_row(row, device) : print_row(row, device);
    if (options_.json.empty()) return;
    if (!results_) results_.emplace(options_.json, options_.run, describe_run(device));
    results_->add(row);
  }

  ResultsRun describe_run(Device device) const {
    ResultsRun run;
    run.device_name = device_name(device);
    run.commit = kCommit;
    run.command = recorded_command(g_arguments, std::filesystem::current_path());
    if (options_.host) {
      run.timer = host_timer();
      run.cold = false;
      return run;
    }
    run.timer = device.type == DeviceType::kCpu ? "steady_clock" : "cuda-graph";
    run.cold = device.type == DeviceType::kCuda;
    run.ceilings = ceilings(device);
    return run;
  }

  static std::string host_timer() {
    return fmt::format("steady clock around {} calls", kHostCalls);
  }

  const BenchOptions& options_;
  std::optional<ResultsFile> results_;
  bool failed_ = false;
};

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "Time the cases tagged bench, each result checked first");
  const auto options = std::make_shared<BenchOptions>();
  options->add_to(*command);
  command->add_option("--dtype", options->dtype, "bf16, fp16 or fp32 (default: those of the case)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command->add_option("--replays", options->replays, "samples per case")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--json", options->json, "merge the rows into this results file");
  command->add_option("--run", options->run, "id of the run in that file (default: a new one)");
  command->add_option("--variant", options->variant, "force this variant (tandem info lists them)");
  CLI::Option* provider =
      command
          ->add_option("--provider", options->provider,
                       "only this one (default: tandem and, on CUDA, the unfused baselines)")
          ->check(CLI::IsMember(provider_names()));
  CLI::Option* no_unfused = command->add_flag(
      "--no-unfused", options->no_unfused, "on CUDA, leave out the rows of the unfused baselines");
  CLI::Option* once = command->add_flag("--once", options->once,
                                        "one unchecked call per case and no timing, for profilers");
  command
      ->add_flag(
          "--host", options->host,
          "time what the host does for a call, of the cases tagged host: rounds of 100 calls "
          "that nothing waits for, as many as --replays says")
      ->excludes(provider)
      ->excludes(no_unfused)
      ->excludes(once);
  command->footer(
      "floor: the larger of bytes over the copy rate and flops over the matrix rate, both measured "
      "in\n"
      "the same run; ratio: median over floor. A case that no variant runs is reported, not a "
      "failure;\n"
      "a wrong result is (exit 1).\n"
      "plan (--host): the check of the arguments and the choice of the kernel, without a launch. "
      "On "
      "the\nCPU a call is done when it returns, and its time is all of it.\n"
      "Example: tandem bench gla --case 'b4h32_*' --backend cuda --json results.json");
  command->callback([options] { Bench(*options).run(); });
}

}  // namespace tandem::tools
