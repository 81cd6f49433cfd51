// tandem profile: the hardware counters of a call, beside its time without a profiler.
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
#include "cli/calls/units.h"
#include "cli/commands.h"
#include "cli/files/files.h"
#include "cli/profile/log.h"
#include "cli/profile/ncu_run.h"
#include "cli/profile/print.h"
#include "cli/recorded_command.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

struct ProfileOptions : CaseOptions {
  std::string dtype;
  std::string variant;
  std::string provider = "tandem";
  int replays = 50;
  std::string ncu;
  std::string keep;
  std::string json;
  std::string log;
  std::string note;
};

class Profiler {
 public:
  explicit Profiler(const ProfileOptions& options) : options_(options) {}

  void run() {
    CaseOptions selection = options_;
    if (selection.tag.empty() && selection.globs.empty()) selection.tag = "bench";
    const auto selected = selection.select();
    if (options_.list) return print_cases(selected);
    for (const std::string& path : {options_.json, options_.log, options_.keep}) {
      if (!path.empty()) require_writable(path);
    }
    device_ = backends_of(options_.provider, options_.backend).back();  // CUDA where it works
    run_.device_name = device_name(device_);
    run_.commit = kCommit;
    run_.command = recorded_command(g_arguments, std::filesystem::current_path());
    const std::string reason = find_profiler();
    if (!reason.empty()) fmt::print("no counters, time only: {}\n", reason);
    run_.ceilings = ceilings(device_);
    fmt::print("{}: {}, copy {}B/s, matrix products {}FLOP/s\n", to_string(device_),
               run_.device_name, rate_text(run_.ceilings.copy_tbps * 1e12),
               rate_text(run_.ceilings.bf16_tflops * 1e12));
    for (const auto& [operation, one] : selected) {
      if (!options_.variant.empty() && !has_variant(*operation, options_.variant)) continue;
      if (!has_provider(*operation, options_.provider)) continue;
      for (const DType dtype : one.dtypes) {
        if (!options_.dtype.empty() && to_string(dtype) != options_.dtype) continue;
        try {
          const Baseline* baseline = find_baseline(*operation, options_.provider);
          profile(baseline == nullptr ? with_variant(*operation, options_.variant)
                                      : with_baseline(*operation, *baseline),
                  one, dtype);
        } catch (const Unsupported& error) {
          fmt::print("\n{} {} {}: unsupported: {}\n", title(*operation), one.name, to_string(dtype),
                     error.what());
        }
      }
    }
    if (failed_) throw Failed{};
  }

 private:
  /// Says why there will be no counters; "" when ncu can be asked for them.
  std::string find_profiler() {
    if (device_.type == DeviceType::kCpu) return "on the CPU there are none";
    ncu_ = find_ncu(options_.ncu);
    if (!ncu_.empty()) return "";
    return options_.ncu.empty() ? "no ncu (Nsight Compute) in PATH or where CUDA installs it"
                                : options_.ncu + " is no program";
  }

  void profile(const Operation& operation, const Case& one, DType dtype) {
    Profile found;
    if (!measure(operation, one, dtype, found)) return;
    std::vector<Counters> launches;
    if (!ncu_.empty()) {
      NcuProfile profile = profile_program(ncu_, command(operation, found.row), kept_file());
      if (!profile.problem.empty()) {
        fmt::print("\nno counters, time only: {}\n", profile.problem);
        if (launches_seen_ == 0) ncu_.clear();  // refused here: the next case would be, too
      }
      run_.versions["ncu"] = profile.version;
      launches = std::move(profile.launches);
      launches_seen_ += static_cast<int>(launches.size());
    }
    found.launches = static_cast<int>(launches.size());
    found.total = total(launches);
    found.reading =
        reading(found.total, {found.row.timing.median_us, found.row.cost.bytes,
                              run_.ceilings.copy_tbps, device_properties(device_).multiprocessors});
    print_profile(found, launches, run_.ceilings);
    store(found);
  }

  /// Measures time and cost, after checking the result. False when it is wrong.
  bool measure(const Operation& operation, const Case& one, DType dtype, Profile& found) {
    const TensorSet set = operation.make(one, dtype, options_.seed);
    ResultsRow& row = found.row;
    row.provider = options_.provider;
    const Baseline* baseline = find_baseline(operation, options_.provider);
    {
      Placement placement(set, device_);
      row.variant = call_variant(operation, set, placement, baseline);
      row.chosen = baseline == nullptr && operation.variant.empty();
      const auto errors = operation.expect(set, true)->compare(set, placement.download());
      if (!std::all_of(errors.begin(), errors.end(), [&](const OutputError& error) {
            return is_accepted(error, baseline, dtype);
          })) {
        fmt::print("\n{} {} {}: WRONG, not profiled: {}  {}\n", title(operation), one.name,
                   to_string(dtype), describe(errors), row.variant);
        failed_ = true;
        return false;
      }
    }
    row.op = operation.name;
    row.direction = operation.direction;
    row.case_name = one.name;
    row.dtype = to_string(dtype);
    row.cost = operation.cost(set);
    row.floor_us = floor_us(row.cost, run_.ceilings);
    row.timing = time_call(operation, set, device_, options_.replays);
    if (device_.type == DeviceType::kCuda) row.state = gpu::state(device_.index);
    return true;
  }

  /// Command line of this program that makes one call of the variant that was timed.
  std::vector<std::string> command(const Operation& operation, const ResultsRow& row) const {
    std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                      "bench",
                                      operation.name,
                                      "--direction",
                                      operation.direction,
                                      "--once",
                                      "--backend",
                                      "cuda",
                                      "--case",
                                      row.case_name,
                                      "--dtype",
                                      row.dtype,
                                      "--seed",
                                      std::to_string(options_.seed)};
    if (has_variant(operation, row.variant)) {
      words.insert(words.end(), {"--variant", row.variant});
    }
    if (row.provider != "tandem") words.insert(words.end(), {"--provider", row.provider});
    if (!options_.file.empty()) words.insert(words.end(), {"--cases", options_.file});
    return words;
  }

  /// Name of the file that --keep asks for; with several calls each gets a number.
  std::string kept_file() {
    if (options_.keep.empty() || kept_++ == 0) return options_.keep;
    std::filesystem::path path = options_.keep;
    path.replace_filename(
        fmt::format("{}-{}{}", path.stem().string(), kept_, path.extension().string()));
    return path.string();
  }

  void store(const Profile& found) {
    if (!options_.log.empty()) {
      print_iteration(append_iteration(options_.log, {options_.note, run_}, found).dump());
    }
    if (options_.json.empty() || found.launches == 0) return;
    if (!results_) {
      ResultsRun run = run_;
      run.timer = "ncu";
      results_.emplace(options_.json, "", run);
    }
    if (results_->add_counters(found.row, counters_json(found))) return;
    fmt::print("  not stored: {} has no row of {} {} {} {} by {}; tandem bench --json makes one\n",
               options_.json, found.row.op, found.row.direction, found.row.case_name,
               found.row.dtype, found.row.variant);
    failed_ = true;
  }

  const ProfileOptions& options_;
  Device device_;
  ResultsRun run_;
  std::string ncu_;
  int launches_seen_ = 0;
  int kept_ = 0;
  std::optional<ResultsFile> results_;
  bool failed_ = false;
};

}  // namespace

void add_profile(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "profile", "Hardware counters of the cases tagged bench, by Nsight Compute");
  const auto options = std::make_shared<ProfileOptions>();
  options->add_to(*command);
  command->add_option("--dtype", options->dtype, "bf16, fp16 or fp32 (default: those of the case)")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  command->add_option("--variant", options->variant,
                      "force this variant (tandem info --variants lists them)");
  command
      ->add_option("--provider", options->provider,
                   "tandem, or the unfused baseline of this name, on CUDA")
      ->check(CLI::IsMember(provider_names()))
      ->capture_default_str();
  command->add_option("--replays", options->replays, "samples of the time without a profiler")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--ncu", options->ncu, "path of ncu (default: looked for)");
  command->add_option("--keep", options->keep, "leave ncu's own report, FILE.ncu-rep, for its UI");
  command
      ->add_option("--json", options->json,
                   "set `counters` of the latest rows of these calls in this results file")
      ->check(CLI::ExistingFile);
  CLI::Option* log = command->add_option("--log", options->log,
                                         "append to this log of a kernel's tuning, "
                                         "docs/ops/<op>.iterations.jsonl");
  CLI::Option* note =
      command->add_option("--note", options->note, "what changed since the line before")
          ->needs(log);
  log->needs(note);
  command->footer(
      "Times are of a run without a profiler. Where counters are refused, or ncu is not there, "
      "only the\n"
      "time is reported (exit 0). DRAM writes lack the lines that are still in L2 when a kernel "
      "ends: \"L1\n"
      "writes\" are all that was stored.\n"
      "Example: tandem profile gla --case b4h32_t4096_d64 --dtype bf16 \\\n"
      "           --log docs/ops/gla.iterations.jsonl --note 'two state warpgroups'");
  command->callback([options] { Profiler(*options).run(); });
}

}  // namespace tandem::tools
