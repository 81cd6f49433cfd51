#include "cli/profile/counters.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::tools {

const std::vector<CounterField> kCounterFields = {
    {"profiled_us", "gpu__time_duration.sum", Combine::kSum},
    {"dram_read_bytes", "dram__bytes_read.sum", Combine::kSum},
    {"dram_write_bytes", "dram__bytes_write.sum", Combine::kSum},
    {"l2_bytes", "lts__t_bytes.sum", Combine::kSum},
    {"tensor_pipe_pct", "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
     Combine::kTimeWeighted},
    {"occupancy_pct", "sm__warps_active.avg.pct_of_peak_sustained_active", Combine::kTimeWeighted},
    {"wgmma", "sm__inst_executed_pipe_tensor_op_gmma.sum", Combine::kSum},
    // why beside the DRAM writes: they lack the lines that are still dirty in L2 when a kernel
    // ends.
    {"l1_write_bytes", "l1tex__m_l1tex2xbar_write_bytes.sum", Combine::kSum},
    {"spill_loads", "smsp__inst_executed_op_local_ld.sum", Combine::kSum},
    {"spill_stores", "smsp__inst_executed_op_local_st.sum", Combine::kSum},
    {"registers", "launch__registers_per_thread", Combine::kMax},
    {"shared_bytes", "launch__shared_mem_per_block", Combine::kMax},
    {"blocks", "launch__grid_size", Combine::kMax},
    {"threads", "launch__block_size", Combine::kMax},
};

std::optional<double> Counters::get(const std::string& name) const {
  const auto at = values.find(name);
  return at == values.end() ? std::nullopt : std::optional(at->second);
}

Counters total(const std::vector<Counters>& launches) {
  Counters sum;
  sum.kernel = "total";
  for (const CounterField& field : kCounterFields) {
    double value = 0, weight = 0;
    bool complete = !launches.empty();
    for (const Counters& launch : launches) {
      const std::optional<double> one = launch.get(field.name);
      const std::optional<double> us = launch.get("profiled_us");
      switch (field.combine) {
        case Combine::kSum: value += one.value_or(0); break;
        case Combine::kMax: value = std::max(value, one.value_or(0)); break;
        case Combine::kTimeWeighted:
          value += one.value_or(0) * us.value_or(0);
          weight += us.value_or(0);
          complete = complete && us.has_value();
      }
      complete = complete && one.has_value();
    }
    if (field.combine == Combine::kTimeWeighted) {
      complete = complete && weight > 0;
      value /= weight;
    }
    if (complete) sum.values[field.name] = value;
  }
  return sum;
}

std::string short_kernel_name(const std::string& demangled) {
  std::string name;  // text outside of <> and before the arguments
  int depth = 0;
  for (std::size_t i = 0; i < demangled.size(); ++i) {
    const char c = demangled[i];
    // "(anonymous namespace)::" and "(int)64" inside <> are no argument lists.
    if (demangled.compare(i, 23, "(anonymous namespace)::") == 0) {
      i += 22;
      continue;
    }
    if (c == '<') ++depth;
    if (c == '(' && depth == 0) break;
    if (depth == 0) name += c;
    if (c == '>') --depth;
  }
  while (!name.empty() && name.back() == ' ') name.pop_back();
  name = name.substr(name.find_last_of(": ") + 1);
  return name.empty() ? demangled : name;
}

std::string reading(const Counters& total, const ReadingFacts& facts) {
  const auto read = total.get("dram_read_bytes"), write = total.get("dram_write_bytes");
  if (!read || !write || facts.median_us <= 0 || facts.copy_tbps <= 0) return "";
  const double moved = *read + *write;
  const double memory_pct = 100 * moved / facts.median_us * 1e-6 / facts.copy_tbps;
  const double tensor_pct = total.get("tensor_pipe_pct").value_or(0);
  constexpr double kHalf = 50;
  const bool busy = std::max(memory_pct, tensor_pct) >= kHalf;
  std::string text = !busy                      ? "latency-bound"
                     : memory_pct >= tensor_pct ? "memory-bound"
                                                : "matrix-bound";
  text += ": ";
  if (facts.bytes > 0) text += fmt::format("{:.2f}x the fewest bytes, ", moved / facts.bytes);
  text += fmt::format("{:.0f} % of copy bandwidth", memory_pct);
  if (total.get("tensor_pipe_pct")) text += fmt::format(", tensor pipe {:.0f} %", tensor_pct);
  const auto blocks = total.get("blocks");
  if (blocks && facts.multiprocessors > 0 && *blocks < facts.multiprocessors) {
    text += fmt::format(", {:.0f} blocks on {} multiprocessors", *blocks, facts.multiprocessors);
  }
  if (total.get("spill_loads").value_or(0) + total.get("spill_stores").value_or(0) > 0) {
    text += ", spills";
  }
  return text;
}

}  // namespace tandem::tools
