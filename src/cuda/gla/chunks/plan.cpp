#include "cuda/gla/chunks/plan.h"

#include <algorithm>
#include <cstdint>

#include "core/environment.h"
#include "cuda/gla/chunks/params.h"
#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/expected_reach.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/parts/panel.cuh"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr std::int64_t kPanelBytes = panel_bytes(64);
constexpr int kStateWalks = 2;      // at a time per multiprocessor
constexpr int kFewestPairs = 2;     // of a segment
constexpr int kMostSegments = 128;  // more were not measured

/// In which a kernel walks for states.
int directions(const ChunkBackwardPlan& plan, bool reverse) {
  return (plan.saved_states ? 0 : 1) + (reverse ? 0 : 1);
}

/// Predicts microseconds by the device's model.
double predicted_time(const ChunkBackwardPlan& plan, const GlaForwardProblem& f,
                      const DeviceProperties& device, bool reverse) {
  constexpr double kCacheBytes = 45.0e6;                 // of the L2
  constexpr double kEntries = 6.0, kEntriesOfOne = 0.1;  // where segments begin: a launch, each
  const double state_tensors = 2.5 * directions(plan, reverse);
  const DeviceModel::GlaChunks& model = device_model(device).gla_chunks;
  const std::int64_t heads = f.B * f.H, chunks = ceil_div(f.T, kChunk);
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const std::int64_t walks =
      ceil_div(directions(plan, reverse) * heads * plan.segments, kStateWalks * multiprocessors);
  const double gradients =
      reverse
          ? static_cast<double>(ceil_div(heads, multiprocessors) * plan.pairs) * model.reverse_pair
          : static_cast<double>(ceil_div(heads * plan.pairs, multiprocessors)) * model.pair;
  const auto tensor_bytes = static_cast<double>(heads * chunks * kPanelBytes);
  const double tensor = tensor_bytes / model.bytes_per_microsecond;
  // What the first kernel reads and writes the second one reads, too.
  const bool cached = state_tensors * tensor_bytes <= kCacheBytes;
  const double gradient_tensors = (reverse ? 7.5 : 8.0) - (cached ? state_tensors : 0.0);
  const std::int64_t of_segment = std::min<std::int64_t>(chunks, 2 * plan.segment_pairs);
  // As far as decays are expected to remember, states are read and written once more.
  const double remembered =
      std::min(1.0, static_cast<double>(expected_reach(f)) / (2.0 * kChunk * plan.segment_pairs));
  const double entries = plan.segments > 2 ? kEntries + kEntriesOfOne * plan.segments +
                                                 remembered * directions(plan, reverse) * tensor
                                           : 0.0;
  const double latency = static_cast<double>(walks * of_segment) * model.state_chunk;
  const double traffic = state_tensors * tensor;
  constexpr double kBeside = 0.1;  // of the shorter one, which the longer one does not hide
  return model.call + entries + std::max(latency, traffic) + kBeside * std::min(latency, traffic) +
         std::max(gradients, gradient_tensors * tensor);
}

ChunkBackwardPlan plan_segments(const GlaBackwardProblem& problem, const DeviceProperties& device,
                                bool reverse, int segments) {
  const GlaForwardProblem& f = problem.forward;
  ChunkBackwardPlan plan;
  plan.pairs = static_cast<int>(ceil_div(f.T, 2 * kChunk));
  plan.segment_pairs = std::max(static_cast<int>(ceil_div(plan.pairs, segments)), 1);
  plan.segments = std::max(static_cast<int>(ceil_div(plan.pairs, plan.segment_pairs)), 1);
  plan.saved_states = can_copy_saved_states(f);
  const std::int64_t count = f.B * f.H * plan.pairs;
  WorkspaceLayout workspace;
  if (!plan.saved_states) plan.states = workspace.add(count * kPanelBytes);
  if (!reverse) plan.state_gradients = workspace.add(count * kPanelBytes);
  if (plan.segments > 1) plan.entry_factors = workspace.add(count * sizeof(EntryFactors));
  if (plan.segments > 2) {
    plan.ends = workspace.add(2 * f.B * f.H * plan.segments * sizeof(SegmentEnd));
  }
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(2 * count * 4);
  }
  plan.workspace_bytes = workspace.bytes();
  plan.time = predicted_time(plan, f, device, reverse);
  return plan;
}

}  // namespace

std::string reason_against_chunks(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.B * f.H * std::max<std::int64_t>(ceil_div(f.T, kChunk), 2) > kMaxIndex) {
    return "takes at most 2^31 - 1 chunks of 64 tokens of heads";
  }
  const std::string reason = width_reason("K", f.K, kChunkBackwardWidth);
  return reason.empty() ? width_reason("V", f.V, kChunkBackwardWidth) : reason;
}

ChunkBackwardPlan plan_chunk_backward(const GlaBackwardProblem& problem,
                                      const DeviceProperties& device, bool reverse) {
  ChunkBackwardPlan best = plan_segments(problem, device, reverse, 1);
  // Nobody has all of the state behind a sequence's last segment.
  if (reverse || problem.d_initial_state != nullptr) return best;
  if (const int forced = gla_segments_switch(); forced > 0) {
    const int most = std::clamp(best.pairs, 1, kMostSegments);
    return plan_segments(problem, device, reverse, std::min(forced, most));
  }
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t walks = std::max<std::int64_t>(directions(best, reverse) * f.B * f.H, 1);
  const auto most = static_cast<int>(std::min<std::int64_t>(
      {kStateWalks * device.multiprocessors / walks, best.pairs / kFewestPairs, kMostSegments}));
  for (int segments = 2; segments <= most; ++segments) {
    const ChunkBackwardPlan plan = plan_segments(problem, device, reverse, segments);
    if (plan.time < best.time) best = plan;
  }
  return best;
}

}  // namespace tandem::cuda::gla
