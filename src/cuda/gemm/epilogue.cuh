// What the GEMM main loop hands to an epilogue.
#pragma once

#include <cstdint>

#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::gemm {

/// A warpgroup's 64 rows by 128 columns of a finished tile: wgmma's accumulator (parts/wgmma.cuh).
struct Fragment {
  const float (&values)[kTileColumns / 2];
  int row;     // of the result: the fragment's first
  int column;  // the same
  int outer;   // the batch row, or with kTN the slice
};

/// Stores a fragment's elements that lie inside the result, rounded to Stored. `row_at(row)` tells
/// where a row of the result begins.
template <class Stored, class RowAt>
__device__ void store_fragment(const Operands& operands, const Fragment& fragment, RowAt row_at) {
  const int row = fragment.row + fragment_row();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + 8 * half;
    Stored* to = row_at(at);
#pragma unroll
    for (int i = 0; i < kTileColumns / 4; ++i) {
      const int column = fragment.column + fragment_column(i / 2) + i % 2;
      if (at < operands.rows && column < operands.columns) {
        to[column] = static_cast<Stored>(fragment.values[i / 2 * 4 + 2 * half + i % 2]);
      }
    }
  }
}

}  // namespace tandem::cuda::gemm
