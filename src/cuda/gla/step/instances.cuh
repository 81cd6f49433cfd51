// Instantiates launch_step for every variant of one dtype.
#pragma once

#include "cuda/gla/step/kernel.cuh"

#define TANDEM_STEP_INSTANCE(...) \
  template void launch_step<__VA_ARGS__>(const char*, const GlaStepProblem&, void*);

#define TANDEM_INSTANCES_STEP(Element)                           \
  namespace tandem::cuda::gla {                                  \
  TANDEM_STEP_INSTANCE(StepWideConfig<Element>)                  \
  TANDEM_STEP_INSTANCE(StepVectorConfig<Element, float>)         \
  TANDEM_STEP_INSTANCE(StepVectorConfig<Element, __nv_bfloat16>) \
  TANDEM_STEP_INSTANCE(StepScalarConfig<Element, float>)         \
  TANDEM_STEP_INSTANCE(StepScalarConfig<Element, __nv_bfloat16>) \
  }
