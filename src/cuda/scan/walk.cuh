// How maps become states: over the threads of a warp, the warps of a CTA, and a cluster whose CTAs
// have neighbouring tiles of a chain. In time, or, kReverse, from the last token to the first:
// "before" is then later in time.
#pragma once

#include <cuda_runtime.h>

#include "cuda/scan/channels.cuh"
#include "cuda/scan/map.cuh"
#include "cuda/scan/plan.h"

namespace tandem::cuda {

template <bool kReverse>
__device__ inline ScanMap shuffle_from_before(ScanMap map, int lanes) {
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  if constexpr (kReverse) {
    return {__shfl_down_sync(kWarp, map.factor, lanes), __shfl_down_sync(kWarp, map.sum, lanes)};
  } else {
    return {__shfl_up_sync(kWarp, map.factor, lanes), __shfl_up_sync(kWarp, map.sum, lanes)};
  }
}

/// Lanes that are kLanes apart have neighbouring tokens of the same channels. On entry a thread's
/// own maps, on return those of all of the warp's tokens before its own; the whole warp's go to
/// `of_warp` (a thread's channels).
template <int kLanes, bool kReverse>
__device__ inline void scan_warp(ScanMap (&maps)[kChannels], ScanMap* of_warp) {
  const int lane = kReverse ? 31 - threadIdx.x % 32 : threadIdx.x % 32;
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) {
#pragma unroll
    for (ScanMap& map : maps) {
      const ScanMap before = shuffle_from_before<kReverse>(map, distance);
      if (lane >= distance) map = compose(before, map);
    }
  }
  if (lane >= 32 - kLanes) {
#pragma unroll
    for (int j = 0; j < kChannels; j += 2) {
      *reinterpret_cast<float4*>(&of_warp[j]) = {maps[j].factor, maps[j].sum, maps[j + 1].factor,
                                                 maps[j + 1].sum};
    }
  }
#pragma unroll
  for (ScanMap& map : maps) {
    const ScanMap before = shuffle_from_before<kReverse>(map, kLanes);
    map = lane >= kLanes ? before : ScanMap{};
  }
}

template <int kWarps, int kWidth>
struct WalkShared {
  ScanMap inbox[2][kMostScanRanks][kWidth];  // of two steps: the maps of the cluster's tiles
  ScanMap warp_maps[kWarps][kWidth];
  float warp_states[kWarps][kWidth];  // before each warp's tokens
};

/// Calls visit(warp, its map) in the order of the walk, for one column.
template <bool kReverse, int kWarps, int kWidth, class Visit>
__device__ inline void for_each_warp(const ScanMap (&warp_maps)[kWarps][kWidth], int column,
                                     Visit visit) {
  constexpr int kAtOnce = kWarps < 8 ? kWarps : 8;  // on their way from shared memory
#pragma unroll
  for (int begin = 0; begin < kWarps; begin += kAtOnce) {
    ScanMap maps[kAtOnce];
    const auto warp_of = [&](int i) { return kReverse ? kWarps - 1 - (begin + i) : begin + i; };
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) maps[i] = warp_maps[warp_of(i)][column];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) visit(warp_of(i), maps[i]);
  }
}

struct WalkPlace {
  int ranks;
  int rank;  // of this CTA among those of its cluster
  int step;
};

/// Called by all threads between two barriers of the CTA: behind the first one warp_maps is
/// complete, behind the second one warp_states. `carry` is, in the first kWidth threads, the state
/// of a column before all of the cluster's tiles, then behind them; visit(warp, state) is called
/// there for the state before each warp. A cluster's threads have all arrived at its barrier once
/// before the first step.
template <bool kReverse, int kWarps, int kWidth, class Visit>
__device__ inline void pass_states(WalkShared<kWarps, kWidth>& shared, const WalkPlace& place,
                                   float& carry, Visit visit) {
  const int column = threadIdx.x;
  const bool has_column = column < kWidth;
  float state = carry;
  if (place.ranks > 1) {
    ScanMap(&inbox)[kMostScanRanks][kWidth] = shared.inbox[place.step % 2];
    if (place.step == 0) __cluster_barrier_wait();  // all are there
    if (has_column) {
      ScanMap tile;
      for_each_warp<kReverse>(shared.warp_maps, column,
                              [&](int, ScanMap map) { tile = compose(tile, map); });
      for (int rank = 0; rank < place.ranks; ++rank) {
        *reinterpret_cast<float2*>(__cluster_map_shared_rank(&inbox[place.rank][column], rank)) = {
            tile.factor, tile.sum};
      }
    }
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    if (has_column) {
      for (int rank = 0; rank < place.ranks; ++rank) {
        if (rank == place.rank) state = carry;
        carry = apply(inbox[rank][column], carry);
      }
    }
  }
  if (!has_column) return;
  for_each_warp<kReverse>(shared.warp_maps, column, [&](int warp, ScanMap map) {
    visit(warp, state);
    shared.warp_states[warp][column] = state;
    state = apply(map, state);
  });
  if (place.ranks == 1) carry = state;
}

}  // namespace tandem::cuda
