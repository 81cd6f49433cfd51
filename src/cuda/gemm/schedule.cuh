// Which tiles a CTA computes, in which order.
//
// CTAs stay: with n of them, number c takes the tiles c, c + n, ... of an order in which those that
// run at the same time form a block of the result about as high as it is wide, and so read each row
// of A and B from device memory once:
//
//   columns ->
//   0  8  16 ..     8 tiles down, or 16 of 256 columns, then one to the right
//   1  9  17
//   ..
//   7  15 ..
//   then the next 8 rows of tiles
//
// Of a product that runs beside another (gemm/operands.h) the CTAs that begin early take their
// early tiles in the same way, among themselves. Behind the whole tiles come those of a tail
// (gemm/operands.h), the first part of each of them, then the second, and so on.
//
// Of whole rows the order runs along the rows, and n is a multiple of a row's tiles: those of a row
// run at the same time, and a CTA computes the same columns of all of its rows.
#pragma once

#include <algorithm>

#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"

namespace tandem::cuda::gemm {

/// The batch row of a tile, its first row, its segment of columns and the first column there.
struct Tile {
  int outer;
  int row;
  int segment;
  int column;
  // Of a tail: the part of the depth, and the place among the partial sums of all parts; else -1.
  int part = -1;
  int place = -1;
};

/// Rows of tiles of a block of the result.
template <class Config, class Operands>
constexpr int kTileGroup = Operands::kWholeRows ? 1
                           : Config::kTogether  ? 16
                                                : 8;

/// What tile_at needs of the operands.
template <class Config, class Operands>
TileOrder order_tiles(const Operands& operands) {
  const int outer = Config::kContractsTokens ? 1 : static_cast<int>(operands.B);
  const int columns = operands.tiles_before[Operands::kSegments];
  TileOrder order;
  order.row_tiles = (operands.rows + kTileRows - 1) / kTileRows;
  order.count = outer * order.row_tiles * columns;
  if (order.count == 0) return order;
  order.per_outer = cutlass::FastDivmod(order.row_tiles * columns);
  constexpr int kGroup = kTileGroup<Config, Operands>;
  order.per_group = cutlass::FastDivmod(kGroup * columns);
  order.per_column = cutlass::FastDivmod(kGroup);
  order.per_last_column = cutlass::FastDivmod((order.row_tiles - 1) % kGroup + 1);
  if constexpr (HasTail<Operands>) {
    order.count += operands.tail.tiles * (operands.tail.parts - 1);
  }
  return order;
}

/// CTAs that take the tiles; 0 where a device has too few for a whole row.
template <class Operands>
int count_ctas(const Operands& operands, int tiles, int multiprocessors) {
  const int columns = operands.tiles_before[Operands::kSegments];
  if (Operands::kWholeRows) multiprocessors -= multiprocessors % std::max(columns, 1);
  return std::min(tiles, multiprocessors);
}

/// The index of a CTA's first tile, and of the one behind another; order.count or more: none.
template <class Operands>
__device__ int first_tile(const Operands& operands) {
  const int cta = static_cast<int>(blockIdx.x);
  if constexpr (HasBeside<Operands>) {
    return cta < operands.beside.early_ctas ? cta : operands.beside.early_tiles + cta;
  }
  return cta;
}
template <class Operands>
__device__ int next_tile(const Operands& operands, int index) {
  if constexpr (HasBeside<Operands>) {
    const auto& beside = operands.beside;
    if (index < beside.early_tiles) {
      index += beside.early_ctas;
      return index < beside.early_tiles ? index : beside.early_tiles + static_cast<int>(blockIdx.x);
    }
  }
  return index + static_cast<int>(gridDim.x);
}

/// The tile of an index below order.count.
template <class Config, class Operands>
__device__ Tile tile_at(const Operands& operands, int index) {
  constexpr int kGroup = kTileGroup<Config, Operands>;
  const TileOrder& order = operands.order;
  Tile tile{};
  if constexpr (HasTail<Operands>) {
    const auto& tail = operands.tail;
    if (index >= tail.first) {
      tile.place = index - tail.first;
      tail.per_part(tile.part, index, tile.place);
      index += tail.first;
    }
  }
  int group = 0, row = 0, column_tile = 0;
  order.per_outer(tile.outer, index, index);
  order.per_group(group, index, index);
  const int first = group * kGroup;
  const bool whole = first + kGroup <= order.row_tiles;
  (whole ? order.per_column : order.per_last_column)(column_tile, row, index);
  tile.row = (first + row) * kTileRows;
#pragma unroll
  for (int i = 1; i < Operands::kSegments; ++i)
    tile.segment += column_tile >= operands.tiles_before[i];
  tile.column =
      (column_tile - operands.tiles_before[tile.segment]) * operands.tile_columns[tile.segment];
  return tile;
}

}  // namespace tandem::cuda::gemm
