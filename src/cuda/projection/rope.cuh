// A row of the rotation's tables, for kernels that turn heads forth and back.
#pragma once

#include "cuda/parts/eight.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/projection/heads_params.h"

namespace tandem::cuda::projection {

/// The table's row for a row of a call; what memory holds is clamped into the table.
__device__ inline int rope_position(const RopeParams& rope, int row) {
  int position = row;
  if (rope.row_positions != nullptr) {
    position = rope.row_positions[row];
  } else if (rope.cu_seqlens != nullptr) {
    int low = 0, high = rope.N + 1;  // the first sequence that begins behind the row
    while (low < high) {
      const int middle = (low + high) / 2;
      if (rope.cu_seqlens[middle] <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low > 0) position = row - rope.cu_seqlens[low - 1];
  } else if (rope.length > 0) {
    position = row % rope.length;
  }
  return min(max(position, 0), rope.positions - 1);
}

/// Cosines and sines of one position.
template <class Element>
struct RopeRow {
  const void* cos;
  const void* sin;
  bool fp32;

  __device__ RopeRow(const RopeParams& rope, int position)
      : cos(at(rope, rope.cos, position)), sin(at(rope, rope.sin, position)), fp32(rope.fp32) {}

  /// Of pair j.
  __device__ float2 one(int j) const { return {load(cos, j), load(sin, j)}; }

  /// A cosine, or sine, of pair j.
  template <bool kFp32>
  static __device__ float one(const void* table, int j) {
    if constexpr (kFp32) {
      return static_cast<const float*>(table)[j];
    } else {
      return static_cast<float>(static_cast<const Element*>(table)[j]);
    }
  }
  /// The cosines, or sines, of pairs j and j+1 of tables that lie at multiples of pairs.
  template <bool kFp32>
  static __device__ float2 two(const void* table, int j) {
    if constexpr (kFp32) {
      return *reinterpret_cast<const float2*>(static_cast<const float*>(table) + j);
    } else {
      return unpack_pair<Element>(
          *reinterpret_cast<const std::uint32_t*>(static_cast<const Element*>(table) + j));
    }
  }

 private:
  static __device__ const void* at(const RopeParams& rope, const MatrixTensor& table,
                                   int position) {
    return static_cast<const char*>(table.data) + position * table.row_stride * (rope.fp32 ? 4 : 2);
  }
  __device__ float load(const void* table, int j) const {
    return fp32 ? static_cast<const float*>(table)[j]
                : static_cast<float>(static_cast<const Element*>(table)[j]);
  }
};

/// Turns the pair (a, b) by an angle.
__device__ inline void rotate(float& a, float& b, float cos, float sin) {
  const float first = a * cos - b * sin;
  b = b * cos + a * sin;
  a = first;
}

/// Loads element j of a head norm's weight.
template <class Element>
__device__ float load_norm_weight(const HeadSegment& heads, int j) {
  return heads.norm_fp32 ? static_cast<const float*>(heads.norm_weight)[j]
                         : static_cast<float>(static_cast<const Element*>(heads.norm_weight)[j]);
}

}  // namespace tandem::cuda::projection
