// The table behind cuda::gla_step, for its tests.
#pragma once

#include <string>
#include <vector>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct StepVariant {
  std::string name;
  DType dtype;
  DType state_dtype;
  int vector;                    // columns per load: V and the state's layout must allow it
  int columns;                   // of a CTA's tile
  int tiles_per_multiprocessor;  // with fewer, a variant of narrower tiles is better
  void (*launch)(const char* name, const GlaStepProblem& problem, void* stream);

  /// "" when the variant should run the problem on the device, else why not.
  std::string supports(const GlaStepProblem& problem, const DeviceProperties& device,
                       bool batch_invariant = false) const;
};

const std::vector<StepVariant>& step_variants();

}  // namespace tandem::cuda::gla
