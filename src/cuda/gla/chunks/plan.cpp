#include "cuda/gla/chunks/plan.h"

#include <algorithm>

#include "cuda/gla/chunks/params.h"
#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/parts/panel.cuh"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr std::int64_t kPanelBytes = panel_bytes(64);

/// Chunk pair before which walks are cut in two, or 0. Cuts where an SM can take both halves of its
/// walk side by side and nobody wants the state behind the second one.
int choose_cut(const GlaBackwardProblem& problem, int pairs, const DeviceProperties& device) {
  const GlaForwardProblem& f = problem.forward;
  const bool few = 2 * f.B * f.H <= device.multiprocessors;
  return few && pairs >= 4 && problem.d_initial_state == nullptr ? pairs / 2 : 0;
}

/// Predicts microseconds by the device's model.
double predicted_time(const ChunkBackwardPlan& plan, const GlaForwardProblem& f,
                      const DeviceProperties& device, bool reverse) {
  constexpr int kStateWalks = 2;          // at a time per multiprocessor
  constexpr double kCacheBytes = 45.0e6;  // of the L2
  const int directions = (plan.saved_states ? 0 : 1) + (reverse ? 0 : 1);
  const double state_tensors = 2.5 * directions;
  const DeviceModel::GlaChunks& model = device_model(device).gla_chunks;
  const std::int64_t heads = f.B * f.H, chunks = ceil_div(f.T, kChunk);
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const std::int64_t halves = plan.cut > 0 ? 2 : 1;
  const std::int64_t walks = ceil_div(directions * heads * halves, kStateWalks * multiprocessors);
  const double gradients =
      reverse
          ? static_cast<double>(ceil_div(heads, multiprocessors) * plan.pairs) * model.reverse_pair
          : static_cast<double>(ceil_div(heads * plan.pairs, multiprocessors)) * model.pair;
  const auto tensor_bytes = static_cast<double>(heads * chunks * kPanelBytes);
  const double tensor = tensor_bytes / model.bytes_per_microsecond;
  // What the first kernel reads and writes the second one reads, too.
  const bool cached = state_tensors * tensor_bytes <= kCacheBytes;
  const double gradient_tensors = (reverse ? 7.5 : 8.0) - (cached ? state_tensors : 0.0);
  return model.call +
         std::max(static_cast<double>(walks * ceil_div(chunks, halves)) * model.state_chunk,
                  state_tensors * tensor) +
         std::max(gradients, gradient_tensors * tensor);
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
  const GlaForwardProblem& f = problem.forward;
  ChunkBackwardPlan plan;
  plan.pairs = static_cast<int>(ceil_div(f.T, 2 * kChunk));
  const std::int64_t count = f.B * f.H * plan.pairs;
  WorkspaceLayout workspace;
  plan.saved_states = can_copy_saved_states(f);
  if (!plan.saved_states) plan.states = workspace.add(count * kPanelBytes);
  if (!reverse) {
    plan.state_gradients = workspace.add(count * kPanelBytes);
    plan.cut = choose_cut(problem, plan.pairs, device);
  }
  if (plan.cut > 0) plan.cut_factors = workspace.add(count * sizeof(CutFactor));
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(2 * count * 4);
  }
  plan.workspace_bytes = workspace.bytes();
  plan.time = predicted_time(plan, f, device, reverse);
  return plan;
}

}  // namespace tandem::cuda::gla
