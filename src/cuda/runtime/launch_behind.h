// A kernel launch that does not start before the kernel in front of it has ended.
#pragma once

#include "cuda/runtime/launch.h"

namespace tandem::cuda {

/// As launch_kernel, but all CTAs start together, each where the device would put it when nothing
/// else runs. Costs some microseconds between the two kernels. Without clusters.
template <class Params>
void launch_kernel_behind(const char* name, void (*kernel)(Params), const LaunchShape& shape,
                          cudaStream_t stream, const Params& params) {
  allow(name, reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config{};
  config.gridDim = {shape.blocks, shape.blocks_y, 1};
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace tandem::cuda
