#include "cli/profile/print.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/calls/units.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLine =
    "  {:<28} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>6} {:>5} {:>9} "
    "{:>7} {:>9}\n";

std::string text_of(std::optional<double> value, int digits = 0) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string bytes_of(std::optional<double> value) { return value ? bytes_text(*value) : "-"; }

void print_launch(const Counters& launch) {
  const auto loads = launch.get("spill_loads"), stores = launch.get("spill_stores");
  const std::string spills =
      loads || stores ? text_of(loads.value_or(0) + stores.value_or(0)) : "-";
  fmt::print(kLine, short_kernel_name(launch.kernel).substr(0, 28),
             text_of(launch.get("profiled_us"), 1), bytes_of(launch.get("dram_read_bytes")),
             bytes_of(launch.get("dram_write_bytes")), bytes_of(launch.get("l1_write_bytes")),
             bytes_of(launch.get("l2_bytes")), text_of(launch.get("tensor_pipe_pct"), 1),
             text_of(launch.get("occupancy_pct"), 1), text_of(launch.get("registers")),
             bytes_of(launch.get("shared_bytes")), spills, text_of(launch.get("wgmma")));
}

}  // namespace

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.3f} GB", bytes * 1e-9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes * 1e-6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes * 1e-3);
  return fmt::format("{:.0f} B", bytes);
}

void print_profile(const Profile& profile, const std::vector<Counters>& launches,
                   const Ceilings& ceilings) {
  const ResultsRow& row = profile.row;
  const double us = row.timing.median_us;
  fmt::print("\n{} {} {} {}  {}\n", row.op, row.direction, row.case_name, row.dtype, row.variant);
  fmt::print("  without a profiler: {} (p10 {}, p90 {}), floor {}, {:.2f}x; ", time_text(us),
             time_text(row.timing.p10_us), time_text(row.timing.p90_us), time_text(row.floor_us),
             us / row.floor_us);
  if (row.cost.flops > 0) fmt::print("{}FLOP/s, ", rate_text(row.cost.flops / us * 1e6));
  fmt::print("fewest bytes {} at {}B/s ({:.0f} % of copy)\n", bytes_text(row.cost.bytes),
             rate_text(row.cost.bytes / us * 1e6),
             100 * row.cost.bytes / us * 1e-6 / ceilings.copy_tbps);
  if (!launches.empty()) {
    fmt::print(kLine, "kernel", "ncu us", "DRAM read", "DRAM write", "L1 writes", "L2", "tensor %",
               "occ. %", "regs", "shared", "spills", "wgmma");
    for (const Counters& launch : launches) print_launch(launch);
    if (launches.size() > 1) print_launch(profile.total);
  }
  if (!profile.reading.empty()) fmt::print("  {}\n", profile.reading);
  std::fflush(stdout);
}

void print_iteration(const std::string& text) {
  const Json line = Json::parse(text);
  if (!line.contains("time_over_previous")) {
    fmt::print("  logged as the first of its case\n");
    return;
  }
  fmt::print("  logged: {:.3f} of the time before, {:.3f} of the first\n",
             line.value("time_over_previous", 0.0), line.value("time_over_first", 0.0));
}

}  // namespace tandem::tools
