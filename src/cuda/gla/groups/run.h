// The launches of a backward by groups of heads (groups/plan.h). Host only.
#pragma once

#include "cuda/gla/groups/params.h"
#include "cuda/gla/groups/plan.h"
#include "cuda/gla/state/params.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::gla {

/// Makes dq, dk, dv, d_initial_state and d_log_decay; `launch`, `segments` and `name` are the
/// variant's. Merged sequences have a guard.
void run_group_backward(const GlaBackwardProblem& problem, const GroupBackwardPlan& plan,
                        GroupBackwardLaunch launch, SegmentStatesLaunch segments, const char* name,
                        const FiniteGuard& guard, const DeviceProperties& device,
                        const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda::gla
