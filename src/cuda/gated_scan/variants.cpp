// gated_scan on CUDA: the variant with the shortest predicted time, and its launch. Host only.
#include "cuda/gated_scan/variants.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>

#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"
#include "cuda/scan/plan.h"
#include "ops/gated_scan.h"
#include "tandem/error.h"

namespace tandem::cuda::gated_scan {
namespace {

constexpr const char* kForward = "gated_scan_forward";
constexpr const char* kBackward = "gated_scan_backward";

/// Batch rows times blocks of channels; `per_sequence`: sequences instead of rows, and a row where
/// there is no sequence, for what lies outside.
std::int64_t chains_of(const ScanRecurrence& problem, int width, bool per_sequence) {
  const std::int64_t rows = per_sequence ? std::max<std::int64_t>(problem.N, 1) : problem.B;
  return rows * ceil_div(problem.D, width);
}

template <class Kernel>
ScanPlan plan_kernel(const ScanRecurrence& problem, const Kernel& kernel,
                     const DeviceProperties& device) {
  const std::int64_t tiles = ceil_div(problem.T, kernel.tile_tokens);
  return plan_scan({.chains = chains_of(problem, kernel.width, false),
                    .tiles = std::max<std::int64_t>(tiles, 1),
                    .tile_tokens = kernel.tile_tokens,
                    .width = kernel.width,
                    .blocks_per_sm = kernel.blocks_per_sm,
                    .rows = kernel.rows > 0},
                   device);
}

/// A row of the table with its predicted time. Rows that load single elements come after the
/// others.
template <class Variant>
struct Candidate {
  std::string_view name;
  const Variant* variant;
  double time;

  bool operator<(const Candidate& other) const {
    if (variant->aligned != other.variant->aligned) return variant->aligned;
    return time < other.time;
  }
};

template <class Variant, class Problem>
const Variant& choose_fastest(const char* call, const std::vector<Variant>& table,
                              const Problem& problem, const ScanRecurrence& recurrence,
                              const DeviceProperties& device, const CallOptions& options) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<Candidate<Variant>> candidates;
  candidates.reserve(table.size());
  for (const Variant& variant : table) {
    // why not of all: predictions are most of what the choice takes.
    const bool fits = variant.dtype == recurrence.dtype &&
                      variant.decay_dtype == recurrence.decay_dtype &&
                      variant.per_sequence == options.batch_invariant;
    candidates.push_back({variant.name, &variant,
                          fits ? plan_kernel(recurrence, variant.kernel, device).time : kNever});
  }
  std::stable_sort(candidates.begin(), candidates.end());
  return *choose_variant(
              call, candidates, device, options,
              [&](const Candidate<Variant>& candidate) -> std::string {
                const bool per_sequence = candidate.variant->per_sequence;
                if (options.batch_invariant && !per_sequence) {
                  return "is not batch-invariant";
                }
                if (!options.batch_invariant && per_sequence && options.variant.empty()) {
                  return "is for batch-invariant calls";
                }
                return candidate.variant->supports(problem);
              })
              .variant;
}

/// Whether kept states begin anew with each sequence.
bool begins_anew(const ScanRecurrence& problem, bool per_sequence) {
  return per_sequence && problem.cu_seqlens != nullptr;
}

/// Kept states of a batch row.
std::int64_t state_rows(const ScanRecurrence& problem, bool per_sequence) {
  return begins_anew(problem, per_sequence) ? problem.T / kStateTokens + problem.N
                                            : ceil_div(problem.T, kStateTokens);
}

/// States by sequence, null where there is none: the chain of what lies outside would take its own
/// for the first one's.
float* of_sequences(const ScanRecurrence& problem, const float* states) {
  return problem.N > 0 ? const_cast<float*>(states) : nullptr;
}

template <class Kernel>
ChainParams chain_params(const GatedScanForwardProblem& problem, const Kernel& kernel,
                         bool per_sequence, const DeviceProperties& device) {
  return {
      .sequences = {problem.cu_seqlens, static_cast<int>(problem.N), static_cast<int>(problem.T)},
      .D = problem.D,
      .channel_blocks = static_cast<int>(ceil_div(problem.D, kernel.width)),
      .ranks = per_sequence ? 1 : plan_kernel(problem, kernel, device).ranks,
      .log_decay = problem.log_decay,
      .x = problem.x,
      .decay = problem.decay,
      .gate = problem.gate,
      .initial_state = of_sequences(problem, problem.initial_state),
      .states = nullptr,
      .state_rows = 0};
}

/// Whether the states that the forward kept are of use.
bool takes_states(const BackwardVariant& variant, const GatedScanBackwardProblem& problem) {
  return problem.needs_states() && problem.states != nullptr &&
         !begins_anew(problem.forward, variant.per_sequence);
}

std::size_t states_bytes(const BackwardVariant& variant, const GatedScanBackwardProblem& problem) {
  const GatedScanForwardProblem& forward = problem.forward;
  if (!problem.needs_states() || takes_states(variant, problem)) return 0;
  return static_cast<std::size_t>(forward.B * state_rows(forward, variant.per_sequence)) *
         forward.D * sizeof(float);
}

template <class Variant, class Kernel, class Params>
void launch(const Variant& variant, const Kernel& kernel, const ScanRecurrence& problem,
            const Params& params, const Context& context) {
  const std::int64_t chains = chains_of(problem, kernel.width, variant.per_sequence);
  kernel.launch(variant.name.c_str(), params, static_cast<unsigned>(chains), context.stream.handle);
}

ForwardParams forward_params(const GatedScanForwardProblem& problem,
                             const ForwardVariant& variant) {
  ForwardParams params{};
  static_cast<ChainParams&>(params) = chain_params(problem, variant.kernel, variant.per_sequence,
                                                   device_properties(problem.device));
  params.out = problem.out;
  params.final_state = of_sequences(problem, problem.final_state);
  return params;
}

/// Launches a variant. `states` are kept for a backward, or null.
template <class Problem>
void launch_forward(const ForwardVariant& variant, const Problem& problem, float* states,
                    const Context& context) {
  ForwardParams params = forward_params(problem, variant);
  if constexpr (std::is_same_v<Problem, OfProductProblem>) params.x_rest = problem.x_rest;
  params.states = states;
  params.state_rows = state_rows(problem, false);
  launch(variant, variant.kernel, problem, params, context);
}

/// Runs a forward by a variant. A packed sequence's walk has no state where the backward wants one:
/// another walk keeps them, whose outputs the next one replaces.
template <class Problem>
void run_forward(const ForwardVariant& variant, const Problem& problem, const Context& context) {
  const bool walks_twice = problem.states != nullptr && begins_anew(problem, variant.per_sequence);
  if (walks_twice) {
    Problem first = problem;
    first.final_state = nullptr;  // which may be the initial one
    launch_forward(choose(first, device_properties(problem.device), {}), first, problem.states,
                   context);
  }
  launch_forward(variant, problem, walks_twice ? nullptr : problem.states, context);
}

/// Launches the kernel that keeps a backward variant's states.
void launch_states(const BackwardVariant& variant, const GatedScanForwardProblem& problem,
                   float* states, const Context& context) {
  ForwardParams params{};
  static_cast<ChainParams&>(params) = chain_params(
      problem, variant.states_kernel, variant.per_sequence, device_properties(problem.device));
  params.gate = {};
  params.states = states;
  params.state_rows = state_rows(problem, variant.per_sequence);
  launch(variant, variant.states_kernel, problem, params, context);
}

}  // namespace

const ForwardVariant& choose(const GatedScanForwardProblem& problem, const DeviceProperties& device,
                             const CallOptions& options) {
  return choose_fastest(kForward, forward_variants(), problem, problem, device, options);
}
const BackwardVariant& choose(const GatedScanBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_fastest(kBackward, backward_variants(), problem, problem.forward, device, options);
}

const ForwardVariant& choose(const OfProductProblem& problem, const DeviceProperties& device,
                             const CallOptions& options) {
  return choose_fastest(kForward, of_product_variants(), problem, problem, device, options);
}

double predict_of_product(const ScanRecurrence& problem, const DeviceProperties& device) {
  double time = std::numeric_limits<double>::infinity();
  for (const ForwardVariant& variant : of_product_variants()) {
    if (variant.dtype != problem.dtype || variant.decay_dtype != problem.decay_dtype) continue;
    if (!variant.aligned || variant.per_sequence) continue;
    time = std::min(time, plan_kernel(problem, variant.kernel, device).time);
  }
  return time;
}

void run(const OfProductProblem& problem, const Context& context, const CallOptions& options) {
  if (problem.B == 0) return;
  run_forward(choose(problem, device_properties(problem.device), options), problem, context);
}

}  // namespace tandem::cuda::gated_scan

namespace tandem::cuda {

using namespace gated_scan;

void gated_scan_forward(const GatedScanForwardProblem& problem, const Context& context,
                        const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const ForwardVariant& variant = choose(problem, device, options);
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  run_forward(variant, problem, context);
}

std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options) {
  choose(problem, device, options);
  return 0;
}

void gated_scan_backward(const GatedScanBackwardProblem& problem, const Context& context,
                         const CallOptions& options) {
  const GatedScanForwardProblem& forward = problem.forward;
  const DeviceProperties& device = device_properties(forward.device);
  const BackwardVariant& variant = choose(problem, device, options);
  if (forward.B == 0) return;
  const CallScope scope(variant.name, forward.device.index);
  const bool given = takes_states(variant, problem);
  const std::size_t bytes = states_bytes(variant, problem);
  const ScratchMemory scratch(kBackward, context, bytes);
  float* states = bytes > 0 ? scratch.at<float>(0) : nullptr;
  if (states != nullptr && variant.states_kernel.launch != nullptr) {
    launch_states(variant, forward, states, context);
  }
  BackwardParams params{};
  static_cast<ChainParams&>(params) =
      chain_params(forward, variant.kernel, variant.per_sequence, device);
  params.states = given ? const_cast<float*>(problem.states) : states;
  params.states_given = given;
  params.state_rows = state_rows(forward, variant.per_sequence);
  params.d_out = problem.d_out;
  params.d_final_state = of_sequences(forward, problem.d_final_state);
  params.dx = problem.dx;
  params.d_decay = problem.d_decay;
  params.d_gate = problem.d_gate;
  params.d_initial_state = of_sequences(forward, problem.d_initial_state);
  launch(variant, variant.kernel, forward, params, context);
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options) {
  return states_bytes(choose(problem, device, options), problem);
}

std::vector<VariantInfo> gated_scan_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ForwardVariant& variant : forward_variants()) {
    infos.push_back({"gated_scan", variant.name, sm90_problem(device)});
  }
  for (const BackwardVariant& variant : backward_variants()) {
    infos.push_back({"gated_scan", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
