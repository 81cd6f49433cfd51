#include "cuda/runtime/launch.h"

#include <map>
#include <utility>

namespace tandem::cuda {
namespace {

/// What a kernel may do on a device, as far as this thread has asked for it. A kernel takes as much
/// shared memory at every launch: what one thread allows, another does not take back.
struct Allowed {
  // What every kernel may have, less what it may have beside it as variables.
  std::size_t shared_bytes = 32 * 1024;
  bool large_clusters = false;
};

}  // namespace

bool may_start_early() {
  static const bool may = [] {
    constexpr int kInGraphs = 12030;
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= kInGraphs;
  }();
  return may;
}

void allow(const char* name, const void* kernel, const LaunchShape& shape) {
  constexpr unsigned kPortableCluster = 8;
  const bool large_cluster = shape.cluster > kPortableCluster;
  if (shape.shared_bytes <= Allowed{}.shared_bytes && !large_cluster) return;
  int device = 0;
  cuda_check(cudaGetDevice(&device), name);
  thread_local std::map<std::pair<const void*, int>, Allowed> kernels;
  Allowed& allowed = kernels[{kernel, device}];
  if (shape.shared_bytes > allowed.shared_bytes) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               name);
    allowed.shared_bytes = shape.shared_bytes;
  }
  if (large_cluster && !allowed.large_clusters) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               name);
    allowed.large_clusters = true;
  }
}

}  // namespace tandem::cuda
