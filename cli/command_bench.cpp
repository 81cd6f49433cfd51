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
#include "cli/calls/units.h"
#include "cli/commands.h"
#include "cli/files/files.h"
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

/// Returns the columns of a row that every kind of bench has, behind the case's name.
std::string row_head(const ResultsRow& row) {
  const Timing& timing = row.timing;
  return fmt::format(
      "{:<5} {:>8} {:>6}", row.dtype, time_text(timing.median_us),
      fmt::format("{:.0f} %", 100 * (timing.p90_us - timing.p10_us) / timing.median_us));
}

constexpr const char* kHeadTitles = "dtype     time spread";  // as row_head()

/// Returns the columns of a row of times on a device.
std::string row_text(const ResultsRow& row) {
  const double us = row.timing.median_us;
  std::string text = fmt::format(
      "{} {:>7.2f} {:>6} {:>6} {:>7.1e}", row_head(row), us / row.floor_us,
      row.cost.flops > 0 ? rate_text(row.cost.flops / us * 1e6) : "",  // of an op with matrix work
      rate_text(row.cost.bytes / us * 1e6), row.error);
  if (row.state.known) text += fmt::format(" {:>4}", row.state.sm_clock_mhz);
  return text;
}

std::string row_titles(bool clock) {
  return fmt::format("{} {:>7} {:>6} {:>6} {:>7}{}", kHeadTitles, "x floor", "FLOP/s", "B/s",
                     "error", clock ? "  MHz" : "");
}

std::string host_row_text(const ResultsRow& row) {
  return fmt::format("{} {:>8}", row_head(row), time_text(row.plan_us.value_or(0)));
}

/// Says that a GPU's clocks were held back while a row was timed; "" where they were not.
std::string throttle_text(const gpu::State& state) {
  if (!state.known || (state.throttle_reasons & ~kHarmlessThrottle) == 0) return "";
  return fmt::format(" THROTTLED {:#x}", state.throttle_reasons);
}

/// Returns the variant without the function's name, which heads its rows.
std::string short_variant(const Operation& operation, const std::string& variant) {
  return has_variant(operation, variant) ? variant.substr(operation.function().size() + 1)
                                         : variant;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options) {}

  void run() {
    const auto devices = backends_of(options_.provider, options_.backend);
    check_variant_name(devices);
    const auto selected = selection().select();
    if (options_.list) return print_cases(selected);
    if (!options_.json.empty()) {  // what is wrong there, before timing
      read_results(options_.json);
      require_writable(options_.json);
    }
    for (const auto& [operation, one] : selected) {
      name_width_ = std::max(name_width_, one.name.size());
    }
    for (const Device device : devices) {
      results_.reset();
      titled_.clear();
      if (!options_.once) print_device(device);
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
    if (selection.tag.empty() && selection.globs.empty()) {
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
    const bool on_cpu = device.type == DeviceType::kCpu;
    std::string titles;
    if (options_.host) {
      fmt::print("{}: {}, {}{}\n", to_string(device), device_name(device), host_timer(),
                 on_cpu ? "; a call's time is all of it" : "");
      titles = fmt::format("{} {:>8}", kHeadTitles, "plan");
    } else {
      const Ceilings& top = ceilings(device);
      fmt::print("{}: {}, copy {}B/s, matrix products {}FLOP/s, {}\n", to_string(device),
                 device_name(device), rate_text(top.copy_tbps * 1e12),
                 rate_text(top.bf16_tflops * 1e12),
                 on_cpu ? "steady clock" : "CUDA graph, cold L2");
      titles = row_titles(!on_cpu);
    }
    fmt::print("{:<{}} {} variant\n", "case", name_width_, titles);
  }

  /// Prints a row's text, below the operation's title where the row before was of another.
  void print_row(const Operation& operation, const Case& one, const std::string& text) {
    if (titled_ != title(operation)) {
      titled_ = title(operation);
      fmt::print("{}\n", titled_);
    }
    fmt::print("{:<{}} {}\n", one.name, name_width_, text);
    std::fflush(stdout);
  }

  /// A provider's call that is to be measured; a null `baseline` is Tandem's own.
  struct Contestant {
    Operation operation;
    std::shared_ptr<const TensorSet> set;
    const Baseline* baseline;
    ResultsRow row = {};

    std::string provider() const { return baseline == nullptr ? "tandem" : baseline->provider; }
  };

  void bench(const Operation& operation, const Case& one, DType dtype, Device device) {
    const auto make = [&](const Operation& from) {
      return std::make_shared<const TensorSet>(from.make(one, dtype, options_.seed));
    };
    const std::shared_ptr<const TensorSet> set = make(operation);
    std::vector<Contestant> all;
    if (wants("tandem")) {
      all.push_back({with_variant(operation, options_.variant), set, nullptr});
    }
    if (device.type == DeviceType::kCuda && options_.variant.empty()) {
      for (const Baseline& baseline : operation.baselines) {
        if (!wants(baseline.provider)) continue;
        const Operation instead = with_baseline(operation, baseline);
        all.push_back({instead, baseline.forgoes.empty() ? set : make(instead), &baseline});
      }
    }
    std::erase_if(
        all, [&](Contestant& contestant) { return !is_ready(contestant, one, dtype, device); });
    if (!options_.once && !all.empty()) time(all, one, device);
  }

  bool wants(const std::string& provider) const {
    if (!options_.provider.empty()) return options_.provider == provider;
    return provider == "tandem" || !(options_.once || options_.host || options_.no_unfused);
  }

  /// Checks what a provider computes, or with --once only calls it; returns whether it may be
  /// timed.
  bool is_ready(Contestant& contestant, const Case& one, DType dtype, Device device) {
    try {
      if (!options_.once) return is_right(contestant, one, dtype, device);
      run_once(contestant, one, device);
      return true;
    } catch (const Unsupported& error) {
      print_row(contestant.operation, one,
                fmt::format("{:<5} {} unsupported: {}", to_string(dtype), contestant.provider(),
                            error.what()));
      return false;
    }
  }

  void run_once(const Contestant& contestant, const Case& one, Device device) {
    const Operation& operation = contestant.operation;
    Placement placement(*contestant.set, device);
    const auto call = [&] {
      operation.call(*contestant.set, placement.bases(), device, {});
      if (device.type == DeviceType::kCuda) gpu::synchronize(device.index);
    };
    // why: a shape's first products are timed, by launching them
    if (contestant.baseline != nullptr) call();
    if (device.type == DeviceType::kCuda) gpu::profile(device.index, true);
    call();
    if (device.type == DeviceType::kCuda) gpu::profile(device.index, false);
    fmt::print("{} {} ran once\n", title(operation), one.name);
  }

  bool is_right(Contestant& contestant, const Case& one, DType dtype, Device device) {
    const Operation& operation = contestant.operation;
    const TensorSet& set = *contestant.set;
    const Baseline* const baseline = contestant.baseline;
    ResultsRow& row = contestant.row;
    row.op = operation.name;
    row.direction = operation.direction;
    row.case_name = one.name;
    row.dtype = to_string(dtype);
    if (baseline != nullptr) row.provider = baseline->provider;
    Placement placement(set, device);
    row.variant = call_variant(operation, set, placement, baseline);
    const auto errors = operation.expect(set, true)->compare(set, placement.download());
    for (const OutputError& error : errors) {
      row.error = std::max(row.error, error.value);
      if (is_accepted(error, baseline, dtype)) continue;
      failed_ = true;
      print_row(
          operation, one,
          fmt::format("{:<5} WRONG, not timed: {} {}", row.dtype, describe(errors), row.variant));
      return false;
    }
    return true;
  }

  void time(std::vector<Contestant>& all, const Case& one, Device device) {
    std::vector<TimedOperation> calls;
    for (const Contestant& contestant : all) {
      calls.push_back({&contestant.operation, contestant.set.get()});
    }
    if (options_.host) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const HostTiming host =
            time_host(*calls[i].operation, *calls[i].set, device, options_.replays);
        all[i].row.timing = host.call;
        all[i].row.plan_us = host.plan.median_us;
      }
    } else {
      const std::vector<Timing> timings = time_calls(calls, device, options_.replays);
      for (std::size_t i = 0; i < all.size(); ++i) {
        ResultsRow& row = all[i].row;
        row.cost = all[i].operation.cost(*all[i].set);
        row.floor_us = floor_us(row.cost, ceilings(device));
        row.timing = timings[i];
      }
    }
    gpu::State state;
    if (device.type == DeviceType::kCuda) state = gpu::state(device.index);
    if (!options_.json.empty() && !results_) {
      results_.emplace(options_.json, options_.run, describe_run(device));
    }
    for (Contestant& contestant : all) {
      ResultsRow& row = contestant.row;
      row.state = state;
      print_row(
          contestant.operation, one,
          fmt::format("{} {}{}", options_.host ? host_row_text(row) : row_text(row),
                      short_variant(contestant.operation, row.variant), throttle_text(row.state)));
      if (results_) results_->add(row);
    }
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
  std::size_t name_width_ = 4;  // "case"
  std::string titled_;          // the operation whose rows are being printed
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
  command->add_option("--variant", options->variant,
                      "force this variant (tandem info --variants lists them)");
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
      "time: the median; spread: p90 - p10 over it. x floor: time over the larger of bytes over "
      "the "
      "copy rate\nand flops over the matrix rate, both measured in the same run. A case that no "
      "variant runs is\nreported, not a failure; a wrong result is (exit 1).\n"
      "plan (--host): the check of the arguments and the choice of the kernel, without a launch. "
      "On "
      "the\nCPU a call is done when it returns, and its time is all of it.\n"
      "Example: tandem bench gla --case 'b4h32_*' --backend cuda --json results.json");
  command->callback([options] { Bench(*options).run(); });
}

}  // namespace tandem::tools
