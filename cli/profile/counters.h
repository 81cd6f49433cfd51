// Hardware counters of kernels, by short names, and what they say in one line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::tools {

/// How values of several launches become one.
enum class Combine { kSum, kTimeWeighted, kMax };

/// One quantity: its name in results files and the ncu metric that it comes from.
struct CounterField {
  const char* name;
  const char* metric;
  Combine combine;
};

/// profiled_us dram_read_bytes dram_write_bytes l2_bytes tensor_pipe_pct occupancy_pct wgmma and,
/// past the first kCoreFields, what further passes or the launch itself give.
extern const std::vector<CounterField> kCounterFields;
/// Number of fields that one pass measures together.
constexpr int kCoreFields = 7;

/// Counters of one launch, or of several in total. A quantity that was not measured is not in
/// `values`.
struct Counters {
  std::string kernel;
  std::map<std::string, double> values;

  std::optional<double> get(const std::string& name) const;
};

/// Totals launches: sums of bytes and counts, means of percentages by time, maxima of registers and
/// shared memory. A sum or mean that one launch lacks is left out: it would be of another set of
/// launches.
Counters total(const std::vector<Counters>& launches);

/// Shortens "void tandem::cuda::gla::gla_walk_kernel<Config<64>>(Params)" to "gla_walk_kernel".
std::string short_kernel_name(const std::string& demangled);

/// What a reading compares the counters with, all of the same process.
struct ReadingFacts {
  double median_us = 0;  // without a profiler
  double bytes = 0;      // the fewest
  double copy_tbps = 0;
  int multiprocessors = 0;
};

/// Reads counters: "memory-bound: 1.12x the fewest bytes, 84 % of copy bandwidth, tensor pipe 31
/// %"; "matrix-bound" when the tensor pipe is the busier one; "latency-bound" when neither is half
/// used. "" when DRAM bytes are missing.
std::string reading(const Counters& total, const ReadingFacts& facts);

}  // namespace tandem::tools
