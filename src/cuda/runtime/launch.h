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
  unsigned cluster = 1;  // CTAs; above 8, what the device can do beyond the portable size
  std::size_t shared_bytes = 0;
};

/// Allows a kernel so much dynamic shared memory, and clusters above the portable size, on the
/// current device. Asks the driver once per thread, kernel and device: asking takes as long as a
/// third of a launch.
void allow(const char* name, const void* kernel, const LaunchShape& shape);

template <class Params>
void launch_kernel(const char* name, void (*kernel)(Params), const LaunchShape& shape,
                   cudaStream_t stream, const Params& params) {
  allow(name, reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config{};
  config.gridDim = {shape.blocks, shape.blocks_y, 1};
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {shape.cluster, 1, 1};
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace tandem::cuda
