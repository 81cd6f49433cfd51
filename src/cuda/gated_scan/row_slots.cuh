// Where the tokens of a tile lie in shared memory: each thread's pieces for itself (cp.async), or
// whole rows (TMA), of which a thread reads its part.
#pragma once

#include "cuda/gated_scan/place.cuh"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda {

/// kOfToken pieces of each token.
template <class Config, int kOfToken>
struct PieceSlots {
  using Piece = typename Config::Piece;

  Piece slots[Config::kStages][Config::kTokens * kOfToken][Config::kThreads];

  __device__ const Piece* piece(const ScanPlace<Config>&, int stage, int token, int of) const {
    return &slots[stage][token * kOfToken + of][threadIdx.x];
  }
};

/// kIn tensors that are read, kOut that are written. A thread has kChannels of each of its tokens'
/// rows. A tile is loaded at once; what a warpgroup has written leaves at once.
template <class Config, int kIn, int kOut>
struct RowSlots {
  using Element = typename Config::Element;
  using Piece = typename Config::Piece;
  using Rows = Element[Config::kTileTokens][Config::kWidth];
  static constexpr int kGroupTokens = 4 * Config::kWarpTokens;  // of a warpgroup
  static_assert(Config::kLanes == 32 && sizeof(typename Config::Decay) == sizeof(Element));

  alignas(128) Rows in[Config::kStages][kIn];
  alignas(128) Rows out[kOut];
  Barrier full[Config::kStages];
  Barrier full_half[2 * Config::kStages];

  __device__ const Piece* piece(const ScanPlace<Config>& place, int stage, int token,
                                int of) const {
    return reinterpret_cast<const Piece*>(&in[stage][of][place.row + token][place.column]);
  }
  __device__ Element* result(const ScanPlace<Config>& place, int of) {
    return &out[of][place.row][place.column];
  }

  /// By one thread, the one that loads; the others wait behind a barrier of the CTA only.
  __device__ void init() {
#pragma unroll
    for (Barrier& barrier : full) barrier.init(1);
#pragma unroll
    for (Barrier& barrier : full_half) barrier.init(1);
    fence_barriers_initialised();
  }
  /// By one thread: `count` loads of the stage follow.
  __device__ void expect(int stage, int count) {
    full[stage].arrive_and_expect(count * static_cast<int>(sizeof(Rows)));
  }
  __device__ void load(const ScanPlace<Config>& place, int stage, int of, const CUtensorMap& map,
                       int begin) {
    load_panel(map, full[stage], in[stage][of], {place.block_channel, 0, begin, place.b});
  }
  // The same of two tensors, which take half of a stage.
  __device__ const Piece* half_piece(const ScanPlace<Config>& place, int half, int token,
                                     int of) const {
    return piece(place, half / 2, token, half % 2 * 2 + of);
  }
  __device__ void expect_half(int half, int count) {
    full_half[half].arrive_and_expect(count * static_cast<int>(sizeof(Rows)));
  }
  __device__ void load_half(const ScanPlace<Config>& place, int half, int of,
                            const CUtensorMap& map, int begin) {
    load_panel(map, full_half[half], in[half / 2][half % 2 * 2 + of],
               {place.block_channel, 0, begin, place.b});
  }
  /// By the thread that loads, at the end: all loads that it has started are complete. `stage` and
  /// `phase`: of the next one that would be waited for.
  __device__ void drain(int stage, int phase) const {
#pragma unroll
    for (int i = 0; i < Config::kStages; ++i) {
      full[stage].wait(phase);
      if (++stage == Config::kStages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
  /// By one thread of a warpgroup, behind sync_warpgroup and each thread's
  /// fence_shared_for_async_proxy.
  __device__ void store(const ScanPlace<Config>& place, int of, const CUtensorMap& map, int begin) {
    const int row = place.warp / 4 * kGroupTokens;
    store_panel(map, out[of][row], {place.block_channel, 0, begin + row, place.b});
  }
};

}  // namespace tandem::cuda
