// How 64 rows of a warpgroup leave its registers for memory.
#pragma once

#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::attention {

/// Transposes a 4 x 4 matrix of words between the four lanes of a quad: lane c has row c before,
/// column c after.
__device__ inline uint4 transpose_quad(const std::uint32_t (&word)[4]) {
  constexpr unsigned kAllLanes = 0xFFFFFFFFu;
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  const std::uint32_t a = __shfl_xor_sync(kAllLanes, upper ? word[0] : word[2], 2);
  const std::uint32_t b = __shfl_xor_sync(kAllLanes, upper ? word[1] : word[3], 2);
  // Rows c % 2 and c % 2 + 2 of the two columns that a pair of lanes will have.
  const std::uint32_t first[2] = {upper ? a : word[0], upper ? word[2] : a};
  const std::uint32_t second[2] = {upper ? b : word[1], upper ? word[3] : b};
  const std::uint32_t low = __shfl_xor_sync(kAllLanes, odd ? first[0] : second[0], 1);
  const std::uint32_t high = __shfl_xor_sync(kAllLanes, odd ? first[1] : second[1], 1);
  if (odd) return {low, second[0], high, second[1]};
  return {first[0], low, first[1], high};
}

/// Stores rows [0, rows) of a fragment, 64 bytes of a row at a time. `to` is the first row's.
template <class Element, int kCount>
__device__ void store_rows(const float (&o)[kCount], const float (&factor)[2], Element* to,
                           std::int64_t row_stride, int rows, int columns) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = fragment_row() + 8 * half;
    Element* const own = to + row * row_stride + 8 * lane;
    // why a select: a row that sees nothing may hold 0 * NaN.
    const auto result = [&](float value) {
      return factor[half] == 0.0f ? 0.0f : value * factor[half];
    };
#pragma unroll
    for (int column = 0; column < kCount * 2; column += 32) {
      std::uint32_t words[4];
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        const int i = column / 2 + 4 * block + 2 * half;
        words[block] = pack_pair<Element>(result(o[i]), result(o[i + 1]));
      }
      const uint4 piece = transpose_quad(words);
      if (row < rows && column + 8 * lane < columns) {
        *reinterpret_cast<uint4*>(own + column) = piece;
      }
    }
  }
}

/// Stores rows [0, rows) of a fragment in fp32, 32 bytes of a row at a time.
template <int kCount>
__device__ void store_sums(const float (&sums)[kCount], float* to, std::int64_t row_stride,
                           int rows, int columns) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = fragment_row() + 8 * half;
    float* const own = to + row * row_stride;
#pragma unroll
    for (int block = 0; block < kCount / 4; ++block) {
      const int column = fragment_column(block), i = 4 * block + 2 * half;
      if (row < rows && column < columns) {
        *reinterpret_cast<float2*>(own + column) = {sums[i], sums[i + 1]};
      }
    }
  }
}

}  // namespace tandem::cuda::attention
