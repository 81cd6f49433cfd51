#include "cuda/gla/reverse/plan.h"

#include <algorithm>
#include <cstdint>

#include "core/environment.h"
#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/expected_reach.h"
#include "cuda/gla/common/workspace_room.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

// Narrower heads would have more memory for states, which are padded, than a backward may take: 1.1
// times the wider of q and v.
constexpr int kNarrowest = 120;
constexpr std::int64_t kStateBytes = 2 * kReverseWidth * kReverseWidth;
constexpr int kMostSegments = 64;
constexpr int kFewestChunks = 4;  // per segment
// Segments up to which all of them look back. Where decays turn out to remember everything, what is
// read grows with the square of their number.
constexpr int kMostLookingBack = 4;

/// `reach`: tokens that a state depends on.
double predicted_time(const ReversePlan& plan, std::int64_t heads, std::int64_t reach,
                      const DeviceProperties& device) {
  const DeviceModel::GlaReverse& model = device_model(device).gla_reverse;
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const auto round = [&](std::int64_t together) {
    constexpr double kAlone = 0.35;  // of the time with all of them: does not depend on how many
    const double heads = kAlone * static_cast<double>(multiprocessors) +
                         (1.0 - kAlone) * static_cast<double>(together);
    return std::max(model.chunk, heads * model.head);
  };
  const std::int64_t walks = heads * plan.segments, last = walks % multiprocessors;
  const double chunk = static_cast<double>(walks / multiprocessors) * round(multiprocessors) +
                       (last > 0 ? round(last) : 0.0);
  constexpr double kOfGradients = 0.76;  // of the time, which is that of states, too
  const double walk =
      model.call + plan.segment_chunks * chunk * (plan.saved_states ? kOfGradients : 1.0);
  if (plan.segments == 1) return walk;
  // What is read for the states of segments: k, v, q and do. Else in a kernel of its own, and sums.
  const int launches = plan.looks_back ? 1 : 3;
  constexpr std::int64_t kChunkBytes = 4 * 2 * kChunk * kReverseWidth;
  const DeviceModel::GlaWalk& span = device_model(device).gla_walk;
  const std::int64_t chunks = std::min<std::int64_t>(
      plan.chunks, plan.segments * (ceil_div(reach, kChunk) + 1));  // that are read
  return walk + launches * span.call +
         static_cast<double>(heads * chunks * kChunkBytes) / span.bytes_per_microsecond;
}

ReversePlan plan_segments(const GlaBackwardProblem& problem, std::int64_t reach,
                          const DeviceProperties& device, int segments) {
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t heads = f.B * f.H;
  ReversePlan plan;
  plan.chunks = static_cast<int>(ceil_div(f.T, kChunk));
  plan.saved_states = can_copy_saved_states(f);
  plan.segment_chunks = std::max(static_cast<int>(ceil_div(plan.chunks, segments)), 1);
  if (plan.saved_states && segments > 1) plan.segment_chunks += plan.segment_chunks % 2;
  plan.segments = std::max(static_cast<int>(ceil_div(plan.chunks, plan.segment_chunks)), 1);
  plan.pairs = static_cast<int>(ceil_div(std::min(plan.segment_chunks, plan.chunks), 2));
  // With two, the second would have to wait for the first in either case.
  plan.looks_back = plan.segments > 1 && plan.segments <= (reach < f.T ? kMostLookingBack : 2);
  plan.time = predicted_time(plan, heads, reach, device);
  WorkspaceLayout workspace;
  if (!plan.saved_states) {
    plan.states = workspace.add(heads * plan.segments * plan.pairs * kStateBytes);
  }
  if (plan.segments > 1) {
    const std::int64_t entries = 4 * heads * plan.segments * f.K * f.V;
    plan.entry_gradients = workspace.add(entries);
    if (!plan.looks_back) {
      plan.entry_states = workspace.add(entries);
      plan.log_decay = workspace.add(4 * heads * plan.segments);
    }
  }
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(4 * heads * plan.segments);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace

std::string reason_against_reverse(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (std::max(f.K, f.V) < kNarrowest) {
    return "takes K or V from " + std::to_string(kNarrowest) + " on, got " + std::to_string(f.K) +
           " and " + std::to_string(f.V);
  }
  // States are read 16 bytes at a time.
  if (std::int64_t{f.K} * f.V % 4 != 0) {
    return "takes K * V in multiples of 4, got " + std::to_string(std::int64_t{f.K} * f.V);
  }
  for (const float* states : {f.initial_state, problem.d_final_state}) {
    if (reinterpret_cast<std::uintptr_t>(states) % 16 != 0) {
      return "takes initial_state and d_final_state at multiples of 16 bytes";
    }
  }
  const std::string reason = width_reason("K", f.K, kReverseWidth);
  return reason.empty() ? width_reason("V", f.V, kReverseWidth) : reason;
}

ReversePlan plan_reverse_backward(const GlaBackwardProblem& problem, const DeviceProperties& device,
                                  const MergedSequences& merged) {
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t most_bytes = workspace_room(f, merged);
  const std::int64_t reach = std::min(merged.reach, expected_reach(f));
  ReversePlan best = plan_segments(problem, reach, device, 1);
  if (const int forced = gla_segments_switch(); forced > 0) {
    return plan_segments(problem, reach, device, std::clamp(forced, 1, std::max(best.chunks, 1)));
  }
  const int most = std::min(kMostSegments, best.chunks / kFewestChunks);
  for (int segments = 2; segments <= most; ++segments) {
    const ReversePlan plan = plan_segments(problem, reach, device, segments);
    if (static_cast<std::int64_t>(plan.workspace_bytes) > most_bytes) break;
    if (plan.time < best.time) best = plan;
  }
  return best;
}

}  // namespace tandem::cuda::gla
