// The launches of a backward by chunks (chunks/plan.h). Host only.
#pragma once

#include "cuda/gla/chunks/params.h"
#include "cuda/gla/chunks/plan.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::gla {

/// Makes dq, dk, dv, d_initial_state and d_log_decay; `launch` and `name` are the variant's. Merged
/// sequences have a guard.
void run_chunk_backward(const GlaBackwardProblem& problem, const ChunkBackwardPlan& plan,
                        ChunkBackwardLaunch launch, const char* name, const FiniteGuard& guard,
                        const DeviceProperties& device, const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda::gla
