// How tiles come into shared memory of whose rows some have to be zero.
#pragma once

#include "cuda/parts/barrier.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::attention {

/// The first warp's, all lanes of it. In shared memory: that role has no register to spare.
struct RowLoader {
  Barrier cut_full;  // a tile whose rows behind a sequence's end are still to be cleared
  unsigned cuts;     // of these so far

  __device__ void init() {
    cut_full.init(1);
    cuts = 0;
  }

  __device__ static bool is_first() { return threadIdx.x == 0; }

  /// Starts loading a tile of kRows rows. One thread.
  template <int kRows, int kPanels>
  __device__ static void load_whole(const CUtensorMap& map, Barrier& full, char* tile,
                                    TileCoordinate at) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      at.column = panel * kPanelColumns;
      load_panel(map, full, tile + panel * panel_bytes(kRows), at);
    }
  }

  /// Zeroes the rows of panels from `from` on.
  template <int kRows, int kPanels>
  __device__ static void clear_rows(char* panels, int from) {
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      auto* rows = reinterpret_cast<uint4*>(panels + panel * panel_bytes(kRows));
#pragma unroll 1
      for (int piece = max(from, 0) * 8 + threadIdx.x % 32; piece < kRows * 8; piece += 32) {
        rows[piece] = uint4{};
      }
    }
  }

  /// Loads a tile whose rows from `rows` on are zero or have to be zero: they may be NaN, and enter
  /// products. `full` gets an arrival, and expects `more` bytes of another copy.
  template <int kRows, int kPanels>
  __device__ void load(const CUtensorMap& map, Barrier& full, char* tile, TileCoordinate at,
                       int rows, int more) {
    constexpr int kBytes = kPanels * panel_bytes(kRows);
    const bool cut = rows < kRows;
    if (cut) {
      if (is_first()) {
        cut_full.arrive_and_expect(kBytes);
        load_whole<kRows, kPanels>(map, cut_full, tile, at);
      }
      __syncwarp();
      cut_full.wait(cuts & 1);
      clear_rows<kRows, kPanels>(tile, rows);
      fence_shared_for_async_proxy();
      __syncwarp();
      if (is_first()) ++cuts;
    }
    if (is_first()) {
      full.arrive_and_expect(more + (cut ? 0 : kBytes));
      if (!cut) load_whole<kRows, kPanels>(map, full, tile, at);
    }
  }
};

}  // namespace tandem::cuda::attention
