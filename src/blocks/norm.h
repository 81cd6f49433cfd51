// The RMS norm in front of a block's products, on the tensors' device.
#pragma once

#include <cstddef>

#include "ops/rms_norm.h"
#include "tandem/context.h"

namespace tandem {

inline void rms_norm_forward(const RmsNormForwardProblem& problem,
                             [[maybe_unused]] const Context& context) {
  if (problem.device.type == DeviceType::kCpu) return cpu::rms_norm_forward(problem);
#ifdef TANDEM_CUDA
  cuda::rms_norm_forward(problem, context);
#endif
}

inline void rms_norm_backward(const RmsNormBackwardProblem& problem,
                              [[maybe_unused]] const Context& context) {
  if (problem.device.type == DeviceType::kCpu) return cpu::rms_norm_backward(problem);
#ifdef TANDEM_CUDA
  cuda::rms_norm_backward(problem, context);
#endif
}

inline std::size_t rms_norm_backward_workspace_bytes(const RmsNormBackwardProblem& problem) {
  if (problem.device.type == DeviceType::kCpu) return 0;
#ifdef TANDEM_CUDA
  return cuda::rms_norm_backward_workspace_bytes(problem);
#else
  return 0;
#endif
}

}  // namespace tandem
