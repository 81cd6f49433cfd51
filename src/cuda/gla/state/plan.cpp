#include "cuda/gla/state/plan.h"

#include <algorithm>

#include "cuda/gla/common/segments.h"
#include "cuda/gla/walk/plan.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

StatePlan plan_state(const GlaStateForwardProblem& problem, int key_dim, int value_dim,
                     const DeviceProperties& device, bool batch_invariant) {
  constexpr std::int64_t kFewestChunks = 8;  // per segment, or the second kernel costs more
  StatePlan plan;
  const std::int64_t walks =
      problem.N * problem.H * ceil_div(problem.K, key_dim) * ceil_div(problem.V, value_dim);
  if (problem.cu_seqlens != nullptr) {
    plan.segments = 1;
  } else if (const std::optional<int> fixed = fixed_segments(problem, walks, batch_invariant)) {
    plan.segments = *fixed;
  } else {
    const std::int64_t chunks = ceil_div(problem.T, kChunk);
    const std::int64_t most = std::min(device.multiprocessors / walks, chunks / kFewestChunks);
    plan.segments = static_cast<int>(std::max<std::int64_t>(most, 1));
  }
  if (plan.split()) {
    const std::int64_t segments = problem.N * problem.H * plan.segments;
    WorkspaceLayout workspace;
    plan.states = workspace.add(4 * segments * problem.K * problem.V);
    plan.total_log_decay = workspace.add(4 * segments);
    plan.workspace_bytes = workspace.bytes();
  }
  return plan;
}

}  // namespace tandem::cuda::gla
