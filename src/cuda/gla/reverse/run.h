// The launches of a backward in one reverse walk (reverse/plan.h). Host only.
#pragma once

#include "cuda/gla/reverse/params.h"
#include "cuda/gla/reverse/plan.h"
#include "cuda/gla/state/params.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::gla {

/// Makes dq, dk, dv, d_initial_state and d_log_decay; `launch`, `segments` and `name` are the
/// variant's. Merged sequences have a guard.
void run_reverse_backward(const GlaBackwardProblem& problem, const ReversePlan& plan,
                          ReverseBackwardLaunch launch, SegmentStatesLaunch segments,
                          const char* name, const FiniteGuard& guard, const ScratchMemory& scratch,
                          void* stream);

}  // namespace tandem::cuda::gla
