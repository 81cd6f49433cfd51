// Which tiles a CTA computes, in which order.
//
// CTAs stay: with n of them, number c takes the tiles c, c + n, ... of an order in which those that
// run at the same time form a block of the result about as high as it is wide, and so read each row
// of A and B from device memory once:
//
//   columns ->
//   0  8  16 ..     8 tiles down, or 16 of wider ones, then one to the right
//   1  9  17
//   ..
//   7  15 ..
//   then the next 8 rows of tiles
//
// Of whole rows the order runs along the rows, and n is a multiple of a row's tiles: those of a row
// run at the same time, and a CTA computes the same columns of all of its rows.
#pragma once

#include <algorithm>

#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"

namespace tandem::cuda::gemm {

/// The first row of a tile, its segment of columns and the first column there, and the batch row or
/// with kTN the slice.
struct Tile {
  int outer;
  int row;
  int segment;
  int column;
};

template <class Config, class Operands>
class Schedule {
 public:
  explicit __host__ __device__ Schedule(const Operands& operands)
      : operands_(operands),
        row_tiles_((operands.rows + kTileRows - 1) / kTileRows),
        column_tiles_(operands.tiles_before[Operands::kSegments]) {
    const int outer = Config::kContractsTokens ? operands.slices : static_cast<int>(operands.B);
    count_ = outer * row_tiles_ * column_tiles_;
  }

  __host__ __device__ int count() const { return count_; }

  /// CTAs that take the tiles; 0 where a device has too few for a whole row.
  __host__ int ctas(int multiprocessors) const {
    if (Operands::kWholeRows) multiprocessors -= multiprocessors % std::max(column_tiles_, 1);
    return std::min(count_, multiprocessors);
  }

  __device__ Tile at(int index) const {
    Tile tile{};
    const int per_outer = row_tiles_ * column_tiles_;
    tile.outer = index / per_outer;
    index -= tile.outer * per_outer;
    const int first = index / (kGroup * column_tiles_) * kGroup;
    index -= first * column_tiles_;
    const int rows = min(kGroup, row_tiles_ - first);
    tile.row = (first + index % rows) * kTileRows;
    const int column_tile = index / rows;
#pragma unroll
    for (int i = 1; i < Operands::kSegments; ++i)
      tile.segment += column_tile >= operands_.tiles_before[i];
    tile.column =
        (column_tile - operands_.tiles_before[tile.segment]) * operands_.tile_columns[tile.segment];
    return tile;
  }

 private:
  static constexpr int kGroup = Operands::kWholeRows ? 1 : Config::kTogether ? 16 : 8;

  const Operands& operands_;
  int row_tiles_;
  int column_tiles_;
  int count_;
};

}  // namespace tandem::cuda::gemm
