// What the GEMM main loop hands to an epilogue, and how an epilogue stores.
#pragma once

#include <cstdint>

#include "cuda/gemm/config.h"
#include "cuda/gemm/operands.h"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gemm {

/// Named barrier of the calling warpgroup.
__device__ inline int rows_barrier() { return kRowsBarrier + threadIdx.x / 128; }

/// 64 rows of a finished tile: wgmma's accumulator (parts/wgmma.cuh).
template <int kColumns>
struct Fragment {
  float (&values)[kColumns / 2];
  int row;         // of the result: the fragment's first
  int segment;     // of its columns
  int column;      // of the segment: the fragment's first
  int outer;       // the batch row
  int place = -1;  // among the partial sums of a tail, else -1
};

/// Sums over the four lanes that share a fragment's rows; each of them gets the sum.
__device__ inline float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
}

/// Stores fragments 64 columns at a time by TMA, through a warpgroup's panels in shared memory, in
/// turn.
template <class Config>
class PanelStore {
 public:
  explicit __device__ PanelStore(char* panels) : panels_(panels) {}

  /// Stores a fragment's panels where they lie in a result of so many columns. Where the last has
  /// less than 64 columns of its own, it begins with some of the one before, which are stored
  /// twice.
  template <class Element, int kColumns>
  __device__ void store_all(const CUtensorMap& map, int columns,
                            const Fragment<kColumns>& fragment) {
#pragma unroll
    for (int panel = 0; panel < kPanelsOf<kColumns>; ++panel) {
      const int first = first_column<kColumns>(panel), column = fragment.column + first;
      if (column < columns) {
        put<Element, false>(map, fragment, first, {column, 0, fragment.row, fragment.outer});
      }
    }
  }

  /// The same for a result that lies transposed: its columns are the map's rows.
  template <class Element, int kColumns>
  __device__ void store_all_transposed(const CUtensorMap& map, int columns,
                                       const Fragment<kColumns>& fragment) {
#pragma unroll
    for (int panel = 0; panel < kPanelsOf<kColumns>; ++panel) {
      const int first = first_column<kColumns>(panel), column = fragment.column + first;
      if (column < columns) {
        put<Element, true>(map, fragment, first, {fragment.row, 0, column, fragment.outer});
      }
    }
  }

  /// Waits until the panels have been read; before the kernel ends.
  __device__ void finish() const {
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }

 private:
  template <int kColumns>
  static constexpr int kPanelsOf = (kColumns + 63) / 64;
  template <int kColumns>
  static __device__ constexpr int first_column(int panel) {
    static_assert(kColumns >= 64 && kColumns % 16 == 0);
    return 64 * panel + 64 <= kColumns ? 64 * panel : kColumns - 64;
  }

  /// Stores columns [first, first + 64) of a fragment, rounded to Element, where they lie inside of
  /// the map's tensor. All threads of the warpgroup.
  template <class Element, bool kTransposed, int kColumns>
  __device__ void put(const CUtensorMap& map, const Fragment<kColumns>& fragment, int first,
                      TileCoordinate at) {
    char* to = panels_ + turn_ * kPanelBytes;
    turn_ = (turn_ + 1) % Config::kStorePanels;
    const bool stores = threadIdx.x % 128 == 0;
    if (stores) cute::tma_store_wait<Config::kStorePanels - 1>();  // what the panel held has left
    sync_warpgroup(rows_barrier());
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      std::uint32_t packed[4];
      accumulator_to_operand<Element>(fragment.values, first / 16 + step, packed);
      if constexpr (kTransposed) {
        store_columns(to, step, packed);
      } else {
        store_rows(to, step, packed);
      }
    }
    fence_shared_for_async_proxy();
    sync_warpgroup(rows_barrier());
    if (stores) store_panel(map, to, at);
  }

  char* panels_;
  int turn_ = 0;
};

/// Stores a fragment's elements that lie before `rows` and `columns` of the result, rounded to
/// Stored: the way for fp32, and for rows that TMA cannot store. `row_at(row)` tells where a row of
/// the result begins.
template <class Stored, int kColumns, class RowAt>
__device__ void store_fragment(const Fragment<kColumns>& fragment, int rows, int columns,
                               RowAt row_at) {
  struct alignas(2 * sizeof(Stored)) Pair {
    Stored first, second;
  };
  const int first = fragment.column + fragment_column(0);
  const int left = columns - first;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = fragment.row + fragment_row() + 8 * half;
    if (row >= rows) continue;
    Stored* to = row_at(row) + first;
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(Pair) == 0;
#pragma unroll
    for (int block = 0; block < kColumns / 8; ++block) {
      const float* values = fragment.values + 4 * block + 2 * half;
      const Pair pair{static_cast<Stored>(values[0]), static_cast<Stored>(values[1])};
      if (aligned && 8 * block + 1 < left) {
        *reinterpret_cast<Pair*>(to + 8 * block) = pair;
      } else {
        if (8 * block < left) to[8 * block] = pair.first;
        if (8 * block + 1 < left) to[8 * block + 1] = pair.second;
      }
    }
  }
}

}  // namespace tandem::cuda::gemm
