// gla_step_kernel on fp16 tensors.
#include "cuda/gla/step.cuh"

namespace tandem::cuda {

template void launch_step<StepWideConfig<__half>>(const char*, const GlaStepProblem&, void*);
template void launch_step<StepVectorConfig<__half, float>>(const char*, const GlaStepProblem&,
                                                           void*);
template void launch_step<StepVectorConfig<__half, __nv_bfloat16>>(const char*,
                                                                   const GlaStepProblem&, void*);
template void launch_step<StepScalarConfig<__half, float>>(const char*, const GlaStepProblem&,
                                                           void*);
template void launch_step<StepScalarConfig<__half, __nv_bfloat16>>(const char*,
                                                                   const GlaStepProblem&, void*);

}  // namespace tandem::cuda
