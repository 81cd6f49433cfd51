#include "cuda/gla/groups/plan.h"

#include <algorithm>

#include "cuda/gla/variant_choice.h"
#include "cuda/parts/panel.cuh"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kNarrow = 64, kWidest = 128;
constexpr int kWidestValue = 64;
// Narrower heads would have more memory for states, which are padded, than a backward may take: 1.1
// times the wider of q and v.
constexpr int kNarrowestOfWide = 120;

std::int64_t state_bytes(const GlaForwardProblem& f) {
  return (f.K <= kNarrow ? 1 : 2) * panel_bytes(64);
}

}  // namespace

std::string reason_against_groups(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.B * f.H * std::max<std::int64_t>(ceil_div(f.T, kChunk), 2) > kMaxIndex) {
    return "takes at most 2^31 - 1 chunks of 64 tokens of heads";
  }
  std::string reason = width_reason("K", f.K, kWidest);
  if (reason.empty()) reason = width_reason("V", f.V, kWidestValue);
  if (reason.empty() && f.K > kNarrow && f.K < kNarrowestOfWide) {
    reason = "takes K <= " + std::to_string(kNarrow) + " or from " +
             std::to_string(kNarrowestOfWide) + " on, got " + std::to_string(f.K);
  }
  return reason;
}

double predicted_groups_time(const GlaBackwardProblem& problem, const DeviceProperties& device) {
  // Measured on an H200 (docs/ops/gla_backward.log.md).
  constexpr double kCall = 14.0;       // two launches, their first loads and last stores
  constexpr double kStateChunk = 1.0;  // one chunk of one walk for states
  constexpr double kHead = 1.25;       // one head of a chunk's gradients
  constexpr double kItem = 3.0;        // what a chunk's gradients take beside their heads
  constexpr int kWalkHeads = 4;        // of one walk
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t chunks = ceil_div(f.T, kChunk), share = f.H / f.HQ, groups = f.B * f.HQ;
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const double memory = device_model(device).gla_chunks.bytes_per_microsecond;
  // Per head and pair of chunks: both states written, v and d_o read.
  const double bytes = static_cast<double>(f.B * f.H * ceil_div(chunks, 2)) *
                       static_cast<double>(2 * state_bytes(f) + 4 * panel_bytes(64));
  const std::int64_t walks =
      ceil_div(2 * groups * ceil_div(share, kWalkHeads), multiprocessors) * chunks;
  const std::int64_t items = ceil_div(groups * chunks, multiprocessors);
  return kCall + std::max(static_cast<double>(walks) * kStateChunk, bytes / memory) +
         static_cast<double>(items) * (kItem + static_cast<double>(share) * kHead);
}

GroupBackwardPlan plan_group_backward(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  GroupBackwardPlan plan;
  plan.chunks = static_cast<int>(ceil_div(f.T, kChunk));
  plan.pairs = static_cast<int>(ceil_div(f.T, 2 * kChunk));
  const std::int64_t bytes = f.B * f.H * plan.pairs * state_bytes(f);
  WorkspaceLayout workspace;
  plan.states = workspace.add(bytes);
  plan.state_gradients = workspace.add(bytes);
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(4 * f.B * f.H * plan.chunks);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::gla
