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
template <class Config>
struct Fragment {
  float (&values)[Config::kColumns / 2];
  int row;     // of the result: the fragment's first
  int column;  // the same
  int outer;   // the batch row, or with kTN the slice
};

/// Stores fragments 64 columns at a time by TMA, through a warpgroup's panels in shared memory, in
/// turn.
template <class Config>
class PanelStore {
 public:
  explicit __device__ PanelStore(char* panels) : panels_(panels) {}

  /// Stores columns [64 panel, 64 panel + 64) of a fragment, rounded to Element, where they lie
  /// inside of the map's tensor. All threads of the warpgroup.
  template <class Element>
  __device__ void store(const CUtensorMap& map, const Fragment<Config>& fragment, int panel,
                        TileCoordinate at) {
    char* to = panels_ + turn_ * kPanelBytes;
    turn_ = (turn_ + 1) % Config::kStorePanels;
    const bool stores = threadIdx.x % 128 == 0;
    if (stores) cute::tma_store_wait<Config::kStorePanels - 1>();  // what the panel held has left
    sync_warpgroup(rows_barrier());
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      std::uint32_t packed[4];
      accumulator_to_operand<Element>(fragment.values, 4 * panel + step, packed);
      store_rows(to, step, packed);
    }
    fence_shared_for_async_proxy();
    sync_warpgroup(rows_barrier());
    if (stores) store_panel(map, to, at);
  }

  /// Stores a whole fragment where it lies in the result.
  template <class Element>
  __device__ void store_all(const CUtensorMap& map, const Operands& operands,
                            const Fragment<Config>& fragment) {
#pragma unroll
    for (int panel = 0; panel < Config::kPanels; ++panel) {
      const int column = fragment.column + 64 * panel;
      if (column < operands.columns) {
        store<Element>(map, fragment, panel, {column, 0, fragment.row, fragment.outer});
      }
    }
  }

  /// Waits until the panels have been read; before the kernel ends.
  __device__ void finish() const {
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }

 private:
  char* panels_;
  int turn_ = 0;
};

/// Stores a fragment's elements that lie inside the result, rounded to Stored: the way for fp32,
/// and for rows that TMA cannot store. `row_at(row)` tells where a row of the result begins.
template <class Stored, class Config, class RowAt>
__device__ void store_fragment(const Operands& operands, const Fragment<Config>& fragment,
                               RowAt row_at) {
  struct alignas(2 * sizeof(Stored)) Pair {
    Stored first, second;
  };
  const int row = fragment.row + fragment_row();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + 8 * half;
    if (at >= operands.rows) continue;
    Stored* to = row_at(at);
    const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(Pair) == 0;
#pragma unroll
    for (int block = 0; block < Config::kColumns / 8; ++block) {
      const int column = fragment.column + fragment_column(block);
      const float* values = fragment.values + 4 * block + 2 * half;
      const Pair pair{static_cast<Stored>(values[0]), static_cast<Stored>(values[1])};
      if (aligned && column + 1 < operands.columns) {
        *reinterpret_cast<Pair*>(to + column) = pair;
      } else {
        if (column < operands.columns) to[column] = pair.first;
        if (column + 1 < operands.columns) to[column + 1] = pair.second;
      }
    }
  }
}

}  // namespace tandem::cuda::gemm
