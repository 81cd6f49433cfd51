// Copies of a chunk's rows into shared-memory tiles, by TMA or by threads.
#pragma once

#include <cuda.h>

#include "cuda/gla/common/item.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gla {

/// Threads of a load warpgroup that copy where TMA cannot: warps 0 and 2.
constexpr int kGatherThreads = 64;

/// Index among the gathering threads.
__device__ inline int gather_thread() { return threadIdx.x % 32 + threadIdx.x / 64 * 32; }

/// Starts loading a tile of 64 rows by `width` columns. One thread.
__device__ inline void load_tile(const CUtensorMap& map, Barrier& full, char* tile, int width,
                                 TileCoordinate from) {
  for (int column = 0; column < width; column += kPanelColumns) {
    load_panel(map, full, tile + column / kPanelColumns * panel_bytes(64), from);
    from.column += kPanelColumns;
  }
}

/// Copies a tile of 64 rows by `width` columns from tensor rows of `dim` elements, zeros outside.
/// The gathering threads.
template <class Element>
__device__ void gather_tile(char* tile, int width, const StridedTensor& tensor, int dim, int rows,
                            TileCoordinate from, int time) {
  const Element* first_row = token_row<Element>(tensor, from.batch, time, from.head) + from.column;
  const int pieces_per_row = width / 8;
  for (int piece = gather_thread(); piece < 64 * pieces_per_row; piece += kGatherThreads) {
    const int row = piece / pieces_per_row;
    const int column = piece % pieces_per_row * 8;
    alignas(16) Element values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = row < rows && from.column + column + i < dim;
      values[i] = inside ? first_row[row * tensor.time_stride + column + i] : Element(0.0f);
    }
    char* panel = tile + column / kPanelColumns * panel_bytes(64);
    *reinterpret_cast<uint4*>(panel + panel_offset(row, column % kPanelColumns / 8)) =
        *reinterpret_cast<const uint4*>(values);
  }
}

/// Zeroes rows [from, 64) of a tile, so that tokens of the next sequence never enter a product. All
/// threads of a warpgroup.
__device__ inline void clear_rows(char* tile, int tile_bytes, int from) {
  const int rows = 64 - from;
  for (int piece = threadIdx.x % 128; piece < tile_bytes / panel_bytes(64) * rows * 8;
       piece += 128) {
    char* panel = tile + piece / (rows * 8) * panel_bytes(64);
    *reinterpret_cast<uint4*>(panel + panel_offset(from + piece / 8 % rows, piece % 8)) = uint4{};
  }
}

}  // namespace tandem::cuda::gla
