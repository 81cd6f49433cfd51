#include "equal.h"

#include <algorithm>

#include "status.h"

namespace tandem::bench {
namespace {

__global__ void find_difference_kernel(const uint4* a, const uint4* b, std::size_t count,
                                       int* differs) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 x = a[i], y = b[i];
    if ((x.x ^ y.x) | (x.y ^ y.y) | (x.z ^ y.z) | (x.w ^ y.w)) *differs = 1;
  }
}

}  // namespace

bool equal(const void* a, const void* b, std::size_t bytes) {
  const std::size_t count = bytes / sizeof(uint4);
  if (count == 0) return true;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const Buffer differs(sizeof(int));
  check(cudaMemset(differs.data(), 0, sizeof(int)), "cudaMemset");
  const std::size_t blocks = std::min<std::size_t>((count + 255) / 256, 4096);
  find_difference_kernel<<<static_cast<unsigned>(blocks), 256>>>(
      static_cast<const uint4*>(a), static_cast<const uint4*>(b), count,
      static_cast<int*>(differs.data()));
  check(cudaGetLastError(), "find_difference_kernel");
  int found = 0;
  check(cudaMemcpy(&found, differs.data(), sizeof(int), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return found == 0;
}

}  // namespace tandem::bench
