// gla_step_kernel on bf16 tensors.
#include "cuda/gla/step.cuh"

namespace tandem::cuda {

template void launch_step<StepWideConfig<__nv_bfloat16>>(const char*, const GlaStepProblem&, void*);
template void launch_step<StepVectorConfig<__nv_bfloat16, float>>(const char*,
                                                                  const GlaStepProblem&, void*);
template void launch_step<StepVectorConfig<__nv_bfloat16, __nv_bfloat16>>(const char*,
                                                                          const GlaStepProblem&,
                                                                          void*);
template void launch_step<StepScalarConfig<__nv_bfloat16, float>>(const char*,
                                                                  const GlaStepProblem&, void*);
template void launch_step<StepScalarConfig<__nv_bfloat16, __nv_bfloat16>>(const char*,
                                                                          const GlaStepProblem&,
                                                                          void*);

}  // namespace tandem::cuda
