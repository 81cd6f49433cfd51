#include "cuda/gla/groups/plan.h"

#include <algorithm>

#include "cuda/gla/variant_choice.h"
#include "cuda/parts/panel.cuh"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kNarrow = 64;
constexpr int kWidestValue = 64;
// Columns of each part, on average. With fewer the states, which are padded, would have more memory
// than a backward may take: 1.1 times the wider of q and v.
constexpr int kNarrowestPart = 120;

std::int64_t parts_of(const GlaForwardProblem& f) { return ceil_div(f.K, kGroupPart); }
/// Of a part's state.
std::int64_t state_bytes(const GlaForwardProblem& f) {
  return (f.K <= kNarrow ? 1 : 2) * panel_bytes(64);
}

}  // namespace

std::string reason_against_groups(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.B * f.H * std::max(ceil_div(f.T, kChunk), 2 * parts_of(f)) > kMaxIndex) {
    return "takes at most 2^31 - 1 chunks of 64 tokens of heads";
  }
  std::string reason = width_reason("K", f.K, kMostGroupParts * kGroupPart);
  if (reason.empty()) reason = width_reason("V", f.V, kWidestValue);
  if (reason.empty() && f.K > kNarrow && f.K < parts_of(f) * kNarrowestPart) {
    reason = "takes K <= " + std::to_string(kNarrow);
    for (int parts = 1; parts <= kMostGroupParts; ++parts) {
      reason += " or " + std::to_string(parts * kNarrowestPart) + " to " +
                std::to_string(parts * kGroupPart);
    }
    reason += ", got " + std::to_string(f.K);
  }
  return reason;
}

double predicted_groups_time(const GlaBackwardProblem& problem, const DeviceProperties& device) {
  // Measured on an H200 (docs/ops/gla_backward.log.md).
  constexpr double kLaunch = 7.0;      // with its first loads and last stores
  constexpr double kStateChunk = 1.8;  // one chunk of one walk for states
  constexpr double kItem = 4.0;        // what a chunk's gradients take beside their heads
  constexpr double kHead = 2.65;       // one head of a chunk's gradients
  constexpr double kNarrowHead = 1.95;
  constexpr double kAddedHead = 1.1;  // what it takes besides where a part before has left dv
  constexpr double kOfCopy = 0.85;    // the memory's rate where as much is written as read
  constexpr int kWalkHeads = 4;       // of one walk
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t parts = parts_of(f);
  const std::int64_t chunks = ceil_div(f.T, kChunk), share = f.H / f.HQ, groups = f.B * f.HQ;
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const double rate = kOfCopy * device_model(device).gla_chunks.bytes_per_microsecond;
  // Of a walk's chunk: v or d_o read, once for all parts, half a state written.
  const double bytes = static_cast<double>(std::min<std::int64_t>(share, kWalkHeads) *
                                           (panel_bytes(64) / parts + state_bytes(f) / 2));
  const auto round = [&](std::int64_t walks) {
    return std::max(walks > 0 ? kStateChunk : 0.0, static_cast<double>(walks) * bytes / rate);
  };
  const std::int64_t walks = 2 * parts * groups * ceil_div(share, kWalkHeads);
  const double chunk = static_cast<double>(walks / multiprocessors) * round(multiprocessors) +
                       round(walks % multiprocessors);
  const std::int64_t items = ceil_div(groups * chunks, multiprocessors);
  const double head = f.K <= kNarrow ? kNarrowHead : kHead;
  return kLaunch * static_cast<double>(1 + parts) + static_cast<double>(chunks) * chunk +
         static_cast<double>(parts * items) * (kItem + static_cast<double>(share) * head) +
         static_cast<double>((parts - 1) * items * share) * kAddedHead;
}

GroupBackwardPlan plan_group_backward(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  GroupBackwardPlan plan;
  plan.parts = static_cast<int>(parts_of(f));
  plan.chunks = static_cast<int>(ceil_div(f.T, kChunk));
  plan.pairs = static_cast<int>(ceil_div(f.T, 2 * kChunk));
  const std::int64_t bytes = f.B * f.H * plan.pairs * state_bytes(f);
  plan.part_bytes = static_cast<std::size_t>(bytes);
  WorkspaceLayout workspace;
  plan.states = workspace.add(plan.parts * bytes);
  plan.state_gradients = workspace.add(plan.parts * bytes);
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(4 * f.B * f.H * plan.chunks);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::gla
