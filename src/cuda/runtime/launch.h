// One kernel launch with its shared-memory limit raised and its errors checked. Unless its shape
// says otherwise it may start while the kernel before it on the stream runs: see
// cuda/parts/stream_order.cuh, whose follow_stream() every kernel calls.
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
  bool early = true;  // else all CTAs start together, some microseconds after the kernel before
};

/// Allows a kernel so much dynamic shared memory, and clusters above the portable size, on the
/// current device. Asks the driver once per thread, kernel and device: asking takes as long as a
/// third of a launch.
void allow(const char* name, const void* kernel, const LaunchShape& shape);

/// Whether kernels may start while the one before them runs: with drivers that know this in
/// captured graphs, too, which is since CUDA 12.3. Without it kernels run one after the other.
bool may_start_early();

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
  config.attrs = attributes;
  if (shape.early && may_start_early()) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace tandem::cuda
