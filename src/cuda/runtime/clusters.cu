#include "cuda/runtime/clusters.h"

#include <cuda_runtime.h>

#include "cuda/runtime/cuda_check.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda {
namespace {

__global__ void whole_multiprocessor_kernel() {}

}  // namespace

decltype(DeviceProperties::clusters) count_clusters(int device) {
  constexpr const char* kWhat = "count_clusters";
  const DeviceGuard guard(device);
  cuda_check(
      cudaFuncSetAttribute(whole_multiprocessor_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kSharedMemoryPerBlock),
      kWhat);
  cuda_check(cudaFuncSetAttribute(whole_multiprocessor_kernel,
                                  cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             kWhat);
  decltype(DeviceProperties::clusters) counts{};
  unsigned size = 2;
  for (int& count : counts) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {size, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = size;
    config.blockDim = 128;
    config.dynamicSmemBytes = kSharedMemoryPerBlock;
    config.attrs = &attribute;
    config.numAttrs = 1;
    // A size that no part of the device can hold is an error of this query, not of the device.
    if (cudaOccupancyMaxActiveClusters(&count, whole_multiprocessor_kernel, &config) !=
        cudaSuccess) {
      cudaGetLastError();
      count = 0;
    }
    ++size;
  }
  return counts;
}

}  // namespace tandem::cuda
