// Where the tokens of a tile lie in shared memory: as each thread's own pieces (cp.async), or as
// whole rows (TMA), of which a thread reads its channels.
#pragma once

#include "cuda/gated_scan/place.cuh"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gated_scan {

/// Pieces of each thread, kOfToken per token.
template <class Config, int kOfToken>
struct PieceSlots {
  using Piece = typename Config::Piece;

  Piece slots[Config::kStages][Config::kTokens * kOfToken][Config::kThreads];

  __device__ const Piece* piece(const Place<Config>&, int stage, int token, int of) const {
    return &slots[stage][token * kOfToken + of][threadIdx.x];
  }
};

/// Rows of kIn tensors that are read and kOut that are written. A thread has kChannels of each of
/// its tokens' rows. One copy loads a tile; one copy stores what a warpgroup has written.
template <class Config, int kIn, int kOut>
struct RowSlots {
  using Element = typename Config::Element;
  using Piece = typename Config::Piece;
  using Rows = Element[Config::kTileTokens][Config::kWidth];
  static constexpr int kWarpgroupTokens = 4 * Config::kWarpTokens;  // tokens of a warpgroup
  static_assert(Config::kLanes == 32 && sizeof(typename Config::Decay) == sizeof(Element));

  alignas(128) Rows in[Config::kStages][kIn];
  alignas(128) Rows out[kOut];
  Barrier full[Config::kStages];
  Barrier full_half[2 * Config::kStages];

  __device__ const Piece* piece(const Place<Config>& place, int stage, int token, int of) const {
    return reinterpret_cast<const Piece*>(&in[stage][of][place.row + token][place.column]);
  }
  __device__ Element* result(const Place<Config>& place, int of) {
    return &out[of][place.row][place.column];
  }

  /// Initialises the barriers. The thread that loads; others may wait on them after a barrier of
  /// the CTA.
  __device__ void init() {
#pragma unroll
    for (Barrier& barrier : full) barrier.init(1);
#pragma unroll
    for (Barrier& barrier : full_half) barrier.init(1);
    fence_barriers_initialised();
  }
  /// Announces `count` loads of the stage. One thread.
  __device__ void expect(int stage, int count) {
    full[stage].arrive_and_expect(count * static_cast<int>(sizeof(Rows)));
  }
  __device__ void load(const Place<Config>& place, int stage, int of, const CUtensorMap& map,
                       int begin) {
    load_panel(map, full[stage], in[stage][of], {place.block_channel, 0, begin, place.b});
  }
  // Half stages: two tensors take half of a stage, with a barrier of its own.
  __device__ const Piece* half_piece(const Place<Config>& place, int half, int token,
                                     int of) const {
    return piece(place, half / 2, token, half % 2 * 2 + of);
  }
  __device__ void expect_half(int half, int count) {
    full_half[half].arrive_and_expect(count * static_cast<int>(sizeof(Rows)));
  }
  __device__ void load_half(const Place<Config>& place, int half, int of, const CUtensorMap& map,
                            int begin) {
    load_panel(map, full_half[half], in[half / 2][half % 2 * 2 + of],
               {place.block_channel, 0, begin, place.b});
  }
  /// Waits until all loads are complete that were started. The thread that loads, at the end.
  /// `stage` and `phase`: the next ones to wait for.
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
  /// Starts storing a warpgroup's rows. One of its threads, after sync_warpgroup and every thread's
  /// fence_shared_for_async_proxy.
  __device__ void store(const Place<Config>& place, int of, const CUtensorMap& map, int begin) {
    const int row = place.warp / 4 * kWarpgroupTokens;
    store_panel(map, out[of][row], {place.block_channel, 0, begin + row, place.b});
  }
};

}  // namespace tandem::cuda::gated_scan
