#pragma once

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Launches gla_step_kernel<Config>; `name` is the variant's, for errors. Instantiated by
/// step/instances.cuh.
template <class Config>
void launch_step(const char* name, const GlaStepProblem& problem, void* stream);

}  // namespace tandem::cuda::gla
