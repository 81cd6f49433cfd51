// What follows a reverse walk over packed sequences as one.
#pragma once

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Writes zeros to all gradients at tokens of no sequence. N >= 1.
void launch_clear_outside(const GlaBackwardProblem& problem, void* stream);

}  // namespace tandem::cuda::gla
