// Timing calls, and the ceilings that a floor is formed from.
#pragma once

#include <string>
#include <vector>

#include "cli/calls/backend.h"
#include "cli/calls/operation.h"

namespace tandem::tools {

struct Timing {
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
};

Timing summarize(std::vector<double> samples_us);

/// Rates that a device reaches at best: bytes read plus written by a large copy, and bf16 matrix
/// products (on a CPU without native bf16: fp32).
struct Ceilings {
  double copy_tbps = 0;
  double bf16_tflops = 0;
};

/// Measures the ceilings of a device, once. CUDA: a device copy and cuBLASLt. CPU: memcpy by all
/// threads, and the CPU backend's own matrix product in cache on every thread.
const Ceilings& ceilings(Device device);

/// Returns max(bytes / copy, flops / matrix rate), in microseconds.
double floor_us(const Cost& cost, const Ceilings& ceilings);

/// Times a call: on CUDA by `replays` of a graph over rotated copies of the set, at least 5 times
/// the L2 in total, so the cache is cold; on the CPU by repeated calls on one copy, about two
/// seconds at most.
Timing time_call(const Operation& operation, const TensorSet& set, Device device, int replays);

/// A call of an operation on a set of tensors, both of the caller's.
struct TimedOperation {
  const Operation* operation;
  const TensorSet* set;
};
/// The same for several calls, which on CUDA take turns: their times are of the same clocks.
std::vector<Timing> time_calls(const std::vector<TimedOperation>& calls, Device device,
                               int replays);

/// The host's share of a call: from C++, arguments made and workspace given beforehand, nothing
/// waited for.
struct HostTiming {
  Timing call;
  Timing plan;  // workspace_bytes() alone: the check and the choice, without a launch
};

/// How many calls a round of time_host() has. Their kernels are few enough for a stream to take
/// them all without making the host wait.
inline constexpr int kHostCalls = 100;

/// Times rounds of kHostCalls calls on one copy of the set, the stream drained before each round,
/// untimed; about two seconds at most. On the CPU a call is done when it returns: its time is all
/// of it.
HostTiming time_host(const Operation& operation, const TensorSet& set, Device device, int rounds);

/// Makes a call and returns the variant that it picks, or kLibraryChoice. Throws Unsupported with
/// the library's text when none accepts it. Leaves the outputs of that variant in the placement.
std::string chosen_variant(const Operation& operation, const TensorSet& set, Placement& placement);

/// Makes a provider's call and returns its variant: the baseline's, that of the operation, or with
/// neither the one that the library picks, as chosen_variant() does.
std::string call_variant(const Operation& operation, const TensorSet& set, Placement& placement,
                         const Baseline* baseline);

}  // namespace tandem::tools
