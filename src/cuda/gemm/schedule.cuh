// Which tiles a CTA computes, in which order.
//
// CTAs stay: with n of them, number c takes the tiles c, c + n, ... of an order in which those that
// run at the same time form a block of the result about as high as it is wide, and so read each row
// of A and B from device memory once:
//
//   columns ->
//   0  8  16 ..     8 tiles down, then one to the right
//   1  9  17
//   ..
//   7  15 ..
//   then the next 8 rows of tiles
#pragma once

#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"

namespace tandem::cuda::gemm {

/// The first row and column of a tile, and the batch row or with kTN the slice.
struct Tile {
  int outer;
  int row;
  int column;
};

template <class Config>
class Schedule {
 public:
  explicit __host__ __device__ Schedule(const Operands& operands)
      : row_tiles_(divide(operands.rows, kTileRows)),
        column_tiles_(divide(operands.columns, Config::kColumns)) {
    const int outer = Config::kContractsTokens ? operands.slices : static_cast<int>(operands.B);
    count_ = outer * row_tiles_ * column_tiles_;
  }

  __host__ __device__ int count() const { return count_; }

  __device__ Tile at(int index) const {
    const int per_outer = row_tiles_ * column_tiles_;
    const int outer = index / per_outer;
    index -= outer * per_outer;
    const int first = index / (kGroup * column_tiles_) * kGroup;
    index -= first * column_tiles_;
    const int rows = min(kGroup, row_tiles_ - first);
    return {outer, (first + index % rows) * kTileRows, index / rows * Config::kColumns};
  }

 private:
  static constexpr int kGroup = 8;
  static constexpr int divide(int a, int b) { return (a + b - 1) / b; }

  int row_tiles_;
  int column_tiles_;
  int count_;
};

}  // namespace tandem::cuda::gemm
