#include "cuda/gla/chunks/plan.h"

#include <algorithm>

#include "cuda/gla/chunks/params.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/parts/panel.cuh"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kWidest = 64;
constexpr std::int64_t kPanelBytes = panel_bytes(64);

/// Chunk pair before which walks are cut in two, or 0. Cuts where an SM can take both halves of its
/// walk side by side and nobody wants the state behind the second one.
int choose_cut(const GlaBackwardProblem& problem, int pairs, const DeviceProperties& device) {
  const GlaForwardProblem& f = problem.forward;
  const bool few = 2 * f.B * f.H <= device.multiprocessors;
  return few && pairs >= 4 && problem.d_initial_state == nullptr ? pairs / 2 : 0;
}

}  // namespace

std::string reason_against_chunks(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.B * f.H * std::max<std::int64_t>(ceil_div(f.T, kChunk), 2) > kMaxIndex) {
    return "takes at most 2^31 - 1 chunks of 64 tokens of heads";
  }
  const std::string reason = width_reason("K", f.K, kWidest);
  return reason.empty() ? width_reason("V", f.V, kWidest) : reason;
}

double predicted_chunks_time(const GlaBackwardProblem& problem, const DeviceProperties& device) {
  constexpr int kStateWalks = 2;  // at a time per multiprocessor
  constexpr int kStateTensors = 5, kGradientTensors = 8;
  const DeviceModel::GlaChunks& model = device_model(device).gla_chunks;
  const GlaForwardProblem& f = problem.forward;
  const ChunkBackwardPlan plan = plan_chunk_backward(problem, device);
  const std::int64_t items = f.B * f.H, chunks = ceil_div(f.T, kChunk);
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const std::int64_t halves = plan.cut > 0 ? 2 : 1;
  const std::int64_t walks = ceil_div(2 * items * halves, kStateWalks * multiprocessors);
  const std::int64_t pairs = ceil_div(items * plan.pairs, multiprocessors);
  const double tensor =
      static_cast<double>(items * chunks * kPanelBytes) / model.bytes_per_microsecond;
  return model.call +
         std::max(static_cast<double>(walks * ceil_div(chunks, halves)) * model.state_chunk,
                  kStateTensors * tensor) +
         std::max(static_cast<double>(pairs) * model.pair, kGradientTensors * tensor);
}

ChunkBackwardPlan plan_chunk_backward(const GlaBackwardProblem& problem,
                                      const DeviceProperties& device) {
  const GlaForwardProblem& f = problem.forward;
  ChunkBackwardPlan plan;
  plan.pairs = static_cast<int>(ceil_div(f.T, 2 * kChunk));
  const std::int64_t count = f.B * f.H * plan.pairs;
  WorkspaceLayout workspace;
  plan.states = workspace.add(count * kPanelBytes);
  plan.state_gradients = workspace.add(count * kPanelBytes);
  plan.cut = choose_cut(problem, plan.pairs, device);
  if (plan.cut > 0) plan.cut_factors = workspace.add(count * sizeof(CutFactor));
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(2 * count * 4);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::gla
