// The launches of a backward by spans (wide/plan.h). Host only.
#pragma once

#include "cuda/gla/wide/params.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::gla {

/// Makes dq, dk, dv, d_initial_state and d_log_decay; `launch` and `name` are the variant's.
void run_wide_backward(const GlaBackwardProblem& problem, const WideBackwardPlan& plan,
                       WideBackwardLaunch launch, const char* name, const DeviceProperties& device,
                       const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda::gla
