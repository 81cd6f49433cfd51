#include "equal.h"

#include <algorithm>

#include "status.h"

namespace tandem::bench {
namespace {

__device__ int differs;

__global__ void find_difference_kernel(const uint4* a, const uint4* b, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 x = a[i], y = b[i];
    if ((x.x ^ y.x) | (x.y ^ y.y) | (x.z ^ y.z) | (x.w ^ y.w)) differs = 1;
  }
}

}  // namespace

bool equal(std::span<const tandem_bench_pair> pairs) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  int found = 0;
  check(cudaMemcpyToSymbol(differs, &found, sizeof(found)), "cudaMemcpyToSymbol");
  for (const auto& [a, b, bytes] : pairs) {
    const std::size_t count = bytes / sizeof(uint4);
    if (count == 0) continue;
    const std::size_t blocks = std::min<std::size_t>((count + 255) / 256, 4096);
    find_difference_kernel<<<static_cast<unsigned>(blocks), 256>>>(
        static_cast<const uint4*>(a), static_cast<const uint4*>(b), count);
    check(cudaGetLastError(), "find_difference_kernel");
  }
  check(cudaMemcpyFromSymbol(&found, differs, sizeof(found)), "cudaMemcpyFromSymbol");
  return found == 0;
}

}  // namespace tandem::bench
