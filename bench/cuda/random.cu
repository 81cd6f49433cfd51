#include <cuda_bf16.h>

#include <algorithm>

#include "random.h"
#include "status.h"

namespace tandem::bench {
namespace {

/// A bijection of 32-bit numbers whose outputs look independent (Chris Wellons' lowbias32).
__device__ std::uint32_t scramble(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

/// The sum of four uniform bytes: mean 510, variance 4 * (256^2 - 1) / 12.
__global__ void fill_random_bf16_kernel(__nv_bfloat16* data, std::size_t count,
                                        std::uint32_t seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto low = static_cast<std::uint32_t>(i), high = static_cast<std::uint32_t>(i >> 32);
    const std::uint32_t bits = scramble(low ^ scramble(high ^ seed));
    const int sum =
        static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24));
    data[i] = __float2bfloat16(static_cast<float>(sum - 510) * (1.0f / 147.8f));
  }
}

}  // namespace

void fill_random_bf16(void* data, std::size_t count, std::uint32_t seed, cudaStream_t stream) {
  const std::size_t blocks = std::min<std::size_t>((count + 255) / 256, 4096);
  if (blocks == 0) return;
  fill_random_bf16_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
      static_cast<__nv_bfloat16*>(data), count, seed);
  check(cudaGetLastError(), "fill_random_bf16_kernel");
}

}  // namespace tandem::bench
