// How maps become states: over the threads of a warp, the warps of a CTA, and a cluster whose CTAs
// have neighbouring tiles of a chain. With kReverse the walk goes from the last token to the first:
// "before" is then later in time.
#pragma once

#include <cuda_runtime.h>

#include "cuda/parts/barrier.cuh"
#include "cuda/parts/cluster.cuh"
#include "cuda/scan/map.cuh"
#include "cuda/scan/plan.h"

namespace tandem::cuda::scan {

template <bool kReverse>
__device__ inline ScanMap shuffle_from_before(ScanMap map, int lanes) {
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  if constexpr (kReverse) {
    return {__shfl_down_sync(kWarp, map.factor, lanes), __shfl_down_sync(kWarp, map.sum, lanes)};
  } else {
    return {__shfl_up_sync(kWarp, map.factor, lanes), __shfl_up_sync(kWarp, map.sum, lanes)};
  }
}

/// Whether the maps are so small that no composition of them over a warp is inf or NaN: then
/// compositions need not be exact.
template <int kChannels>
__device__ inline bool are_small(const ScanMap (&maps)[kChannels]) {
  float factors = 0.0f, sums = 0.0f;
#pragma unroll
  for (const ScanMap& map : maps) {
    factors = fmaf(map.factor, map.factor, factors);
    sums = fmaf(map.sum, map.sum, sums);
  }
  return factors < 16.0f && sums < 1e30f;  // 4^32 1e15 32 is still far from inf
}

template <int kLanes, bool kReverse, bool kExact, int kChannels>
__device__ inline void compose_over_warp(ScanMap (&maps)[kChannels], int lane) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) {
#pragma unroll
    for (ScanMap& map : maps) {
      const ScanMap before = shuffle_from_before<kReverse>(map, distance);
      if (lane >= distance) map = compose<kExact>(before, map);
    }
  }
}

/// Turns a thread's own maps into those of all of the warp's tokens before its own; stores the
/// whole warp's maps at `of_warp` (a thread's channels). Lanes that are kLanes apart have
/// neighbouring tokens of the same channels. `small`: are_small of this thread's maps.
template <int kLanes, bool kReverse, int kChannels>
__device__ inline void scan_warp(ScanMap (&maps)[kChannels], bool small, ScanMap* of_warp) {
  const int lane = kReverse ? 31 - threadIdx.x % 32 : threadIdx.x % 32;
  if constexpr (kLanes == 32) {  // the lanes have the same tokens: nothing to scan over
#pragma unroll
    for (int j = 0; j < kChannels; j += 2) {
      const ScanMap &x = maps[j], &y = maps[j + 1];
      *reinterpret_cast<float4*>(&of_warp[j]) = {x.factor, x.sum, y.factor, y.sum};
    }
#pragma unroll
    for (ScanMap& map : maps) map = {};
    return;
  }
  if (__all_sync(0xFFFFFFFFu, small)) {
    compose_over_warp<kLanes, kReverse, false>(maps, lane);
  } else {
    compose_over_warp<kLanes, kReverse, true>(maps, lane);
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
  ScanMap inbox[2][kMostScanRanks][kWidth];  // the maps of the cluster's tiles, of two steps
  ScanMap warp_maps[kWarps][kWidth];
  float warp_states[kWarps][kWidth];  // before each warp's tokens
  Barrier arrived[2];                 // of inbox
};

struct ClusterStep {
  int ranks;
  int rank;  // of this CTA among those of its cluster
  int step;
};

/// Prepares the cluster's exchange. All threads, first of all.
template <int kWarps, int kWidth>
__device__ inline void start_walk(WalkShared<kWarps, kWidth>& shared, int ranks) {
  if (ranks == 1) return;
  if (threadIdx.x == 0) {
    shared.arrived[0].init(1);
    shared.arrived[1].init(1);
    fence_barriers_initialised();
  }
  __cluster_barrier_arrive();
}

/// Waits until all CTAs of the cluster have started. All threads, after start_walk and before the
/// first pass_states.
__device__ inline void join_walk(int ranks) {
  if (ranks > 1) __cluster_barrier_wait();
}

/// Stores a map in the shared memory of a CTA of the cluster, where `arrived` counts its bytes.
__device__ inline void send_map(ScanMap* to, Barrier* arrived, int rank, ScanMap map) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(address_in_cluster(to, rank)),
      "f"(map.factor), "f"(map.sum), "r"(address_in_cluster(arrived, rank))
      : "memory");
}

/// Calls visit(warp, its map) for one column, in the order of the walk.
template <bool kReverse, int kWarps, int kWidth, class Visit>
__device__ inline void for_each_warp(const ScanMap (&warp_maps)[kWarps][kWidth], int column,
                                     Visit visit) {
  constexpr int kAtOnce = kWarps < 4 ? kWarps : 4;  // on their way from shared memory
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

/// Sends the tile's map to all CTAs of the cluster, takes theirs, and returns the state before the
/// CTA's own tile; moves `carry` from before the cluster's tiles to behind them. The thread of a
/// column, without a barrier of the CTA. why the inbox of two steps ago is free: each CTA has read
/// it before it sent the maps of the step in between, which have arrived here.
template <int kWarps, int kWidth>
__device__ inline float exchange_tiles(WalkShared<kWarps, kWidth>& shared, const ClusterStep& at,
                                       int column, ScanMap tile, float& carry) {
  ScanMap(&inbox)[kMostScanRanks][kWidth] = shared.inbox[at.step % 2];
  Barrier& arrived = shared.arrived[at.step % 2];
  if (column == 0) {
    arrived.arrive_and_expect(at.ranks * kWidth * static_cast<int>(sizeof(ScanMap)));
  }
  for (int rank = 0; rank < at.ranks; ++rank) {
    send_map(&inbox[at.rank][column], &arrived, rank, tile);
  }
  arrived.wait(at.step / 2 % 2);
  float state = carry;
  for (int rank = 0; rank < at.ranks; ++rank) {
    if (rank == at.rank) state = carry;
    carry = apply(inbox[rank][column], carry);
  }
  return state;
}

/// Turns warp_maps into warp_states. All threads, between two barriers of the CTA: after the first
/// warp_maps is complete, after the second warp_states is. The first kWidth threads hold a column
/// each: `carry` moves from before the cluster's tiles to behind them, and visit(warp, state) gets
/// the state before each warp.
template <bool kReverse, int kWarps, int kWidth, class Visit>
__device__ inline void pass_states(WalkShared<kWarps, kWidth>& shared, const ClusterStep& at,
                                   float& carry, Visit visit) {
  const int column = threadIdx.x;
  if (column >= kWidth) return;
  float state = carry;
  if (at.ranks > 1) {
    ScanMap tile;
    for_each_warp<kReverse>(shared.warp_maps, column,
                            [&](int, ScanMap map) { tile = compose(tile, map); });
    state = exchange_tiles(shared, at, column, tile, carry);
  }
  for_each_warp<kReverse>(shared.warp_maps, column, [&](int warp, ScanMap map) {
    visit(warp, state);
    shared.warp_states[warp][column] = state;
    state = apply(map, state);
  });
  if (at.ranks == 1) carry = state;
}

/// Returns the state before the CTA's tile and moves `carry` as pass_states does, forward in time.
template <int kWarps, int kWidth>
__device__ inline float pass_tile(WalkShared<kWarps, kWidth>& shared,
                                  const ScanMap (&warp_maps)[kWarps][kWidth], const ClusterStep& at,
                                  int column, float& carry) {
  float state = carry;
  if (at.ranks > 1) {
    ScanMap tile;
    for_each_warp<false>(warp_maps, column, [&](int, ScanMap map) { tile = compose(tile, map); });
    return exchange_tiles(shared, at, column, tile, carry);
  }
  for_each_warp<false>(warp_maps, column, [&](int, ScanMap map) { carry = apply(map, carry); });
  return state;
}

}  // namespace tandem::cuda::scan
