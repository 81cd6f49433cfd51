#include "cuda/gla/reverse/plan.h"

#include <algorithm>

#include "cuda/gla/variant_choice.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kWidest = 128;
// Narrower heads would have more memory for states, which are padded, than a backward may take: 1.1
// times the wider of q and v.
constexpr int kNarrowest = 120;
constexpr std::int64_t kStateBytes = 2 * kWidest * kWidest;

}  // namespace

std::string reason_against_reverse(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (std::max(f.K, f.V) < kNarrowest) {
    return "takes K or V from " + std::to_string(kNarrowest) + " on, got " + std::to_string(f.K) +
           " and " + std::to_string(f.V);
  }
  const std::string reason = width_reason("K", f.K, kWidest);
  return reason.empty() ? width_reason("V", f.V, kWidest) : reason;
}

double predicted_reverse_time(const GlaBackwardProblem& problem, const DeviceProperties& device) {
  const DeviceModel::GlaReverse& model = device_model(device).gla_reverse;
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t heads = f.B * f.H;
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const auto round = [&](std::int64_t together) {
    return std::max(model.chunk, static_cast<double>(together) * model.head);
  };
  const std::int64_t last = heads % multiprocessors;
  const double chunk = static_cast<double>(heads / multiprocessors) * round(multiprocessors) +
                       (last > 0 ? round(last) : 0.0);
  return model.call + static_cast<double>(ceil_div(f.T, kChunk)) * chunk;
}

ReversePlan plan_reverse_backward(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  ReversePlan plan;
  plan.chunks = static_cast<int>(ceil_div(f.T, kChunk));
  plan.pairs = static_cast<int>(ceil_div(f.T, 2 * kChunk));
  WorkspaceLayout workspace;
  plan.states = workspace.add(f.B * f.H * plan.pairs * kStateBytes);
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(4 * f.B * f.H);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::gla
