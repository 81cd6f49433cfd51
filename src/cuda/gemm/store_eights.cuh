// Storing a fragment from registers, without a panel: an epilogue that stores much would wait for
// panels until TMA, behind the loads of further tiles, has read them.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/gemm/epilogue.cuh"

namespace tandem::cuda::gemm {

/// Hands pairs around in a quad: of four blocks of 8 columns, a pair of each of which every lane
/// has, lane i gets all four pairs of block i.
__device__ inline void gather_block(std::uint32_t (&pairs)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const auto swap = [](std::uint32_t value, int lanes) {
    return __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
  };
  // With its neighbour: blocks 0 and 2, or 1 and 3, of two lanes each.
  const std::uint32_t a = swap(odd ? pairs[0] : pairs[1], 1);
  const std::uint32_t b = swap(odd ? pairs[2] : pairs[3], 1);
  const std::uint32_t first[2] = {odd ? a : pairs[0], odd ? pairs[1] : a};
  const std::uint32_t second[2] = {odd ? b : pairs[2], odd ? pairs[3] : b};
  // With the other two lanes: one block of all four.
  const std::uint32_t c = swap(upper ? first[0] : second[0], 2);
  const std::uint32_t d = swap(upper ? first[1] : second[1], 2);
  pairs[0] = upper ? c : first[0];
  pairs[1] = upper ? d : first[1];
  pairs[2] = upper ? second[0] : c;
  pairs[3] = upper ? second[1] : d;
}

/// Stores a fragment's elements that lie before `rows` and `columns`, rounded to Element, in a
/// matrix whose rows begin at multiples of 16 bytes.
template <class Element, int kColumns>
__device__ void store_eights(const MatrixTensor& to, int rows, int columns,
                             const Fragment<kColumns>& fragment) {
  const int first = fragment.column + 8 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = fragment.row + fragment_row() + 8 * half;
    Element* at = static_cast<Element*>(to.data) + row * to.row_stride + first;
#pragma unroll
    for (int block = 0; block < kColumns / 8; block += 4) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* values = fragment.values + 4 * (block + i) + 2 * half;
        pairs[i] = pack_pair<Element>(values[0], values[1]);
      }
      gather_block(pairs);
      const int left = row < rows ? columns - first - 8 * block : 0;
      if (left >= 8) {
        *reinterpret_cast<uint4*>(at + 8 * block) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      } else {
        const auto* elements = reinterpret_cast<const Element*>(pairs);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i < left) at[8 * block + i] = elements[i];
        }
      }
    }
  }
}

}  // namespace tandem::cuda::gemm
