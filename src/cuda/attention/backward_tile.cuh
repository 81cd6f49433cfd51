// Tiles of gradients on their way from accumulators to tensors, through shared memory.
#pragma once

#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::attention {

/// Rounds scale * acc, 64 rows of this warpgroup, into panels of kRows rows, from `first_row` and
/// `first_column` on.
template <class Element, int kRows, int kCount>
__device__ void put_tile(const float (&acc)[kCount], float scale, char* panels, int first_row,
                         int first_column) {
#pragma unroll
  for (int step = 0; step < kCount / 8; ++step) {
    std::uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packed[i] =
          pack_pair<Element>(scale * acc[8 * step + 2 * i], scale * acc[8 * step + 2 * i + 1]);
    }
    const int sixteen = first_column / 16 + step;
    store_rows(panels + sixteen / 4 * panel_bytes(kRows) + panel_bytes(first_row), sixteen % 4,
               packed);
  }
}

/// Copies rows [0, rows) and columns [0, columns) of panels of kRows rows to memory: kThreads
/// threads, each its `thread`-th 16 bytes. `columns` and strides are multiples of 8.
template <class Element, int kRows, int kColumns, int kThreads>
__device__ void copy_rows(const char* panels, Element* to, std::int64_t stride, int rows,
                          int columns, int thread) {
  constexpr int kPieces = kColumns / 8;
  for (int piece = thread; piece < rows * kPieces; piece += kThreads) {
    const int row = piece / kPieces, column = piece % kPieces * 8;
    if (column >= columns) continue;
    *reinterpret_cast<uint4*>(to + row * stride + column) =
        *reinterpret_cast<const uint4*>(panels + column / kPanelColumns * panel_bytes(kRows) +
                                        panel_offset(row, column % kPanelColumns / 8));
  }
}

}  // namespace tandem::cuda::attention
