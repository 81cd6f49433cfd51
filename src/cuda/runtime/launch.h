// One kernel launch with its shared-memory limit raised and its errors checked. It may start while
// the kernel before it on the stream runs: see cuda/parts/stream_order.cuh, whose follow_stream()
// every kernel calls.
#pragma once

#include <cuda_runtime.h>

#include "cuda/runtime/cuda_check.h"

namespace tandem::cuda {

struct LaunchShape {
  unsigned blocks;
  unsigned blocks_y = 1;
  unsigned threads;
  std::size_t shared_bytes = 0;
};

template <class Params>
void launch_kernel(const char* name, void (*kernel)(Params), const LaunchShape& shape,
                   cudaStream_t stream, const Params& params) {
  cuda_check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shape.shared_bytes)),
             name);
  cudaLaunchConfig_t config{};
  config.gridDim = {shape.blocks, shape.blocks_y, 1};
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace tandem::cuda
