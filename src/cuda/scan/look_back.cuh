// Decoupled look-back over the tiles of a chain of maps s -> A s + X, one per channel, whose bits
// do not depend on which tile was how far.
//
// A tile publishes its map (A, X) as soon as it has it, then waits until, among its predecessors,
// one has published the state after itself and all behind that one their maps. Going on from that
// state map by map it computes the state before itself and publishes the one after. Every state is
// thus made by the same multiply-adds from the chain's first one, no matter from where the fold
// went on: bitwise repeatable. (Merrill and Garland, "Single-pass Parallel Prefix Scan with
// Decoupled Look-back", 2016, with a fixed order of sums.)
//
// Tiles must be started in the chain's order: a ticket (take_ticket), or blockIdx as long as
// every earlier one is sure to have been started. Before the kernel the flags, and the ticket, are
// zeros: one memset.
//
//   const float before = look_back<64>(chain, tile, channel, map, first, sync);
//
// by kChannels neighbouring threads (whole warps), one per channel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/scan/map.cuh"

namespace tandem::cuda {

/// One chain's part of the workspace; slots lie one behind the other, a tile's channels together.
struct LookBackChain {
  ScanMap* maps;         // (tiles, kChannels)
  float* states;         // (tiles, kChannels), after each tile
  std::uint32_t* flags;  // (tiles), 0 before the kernel

  static constexpr std::uint32_t kMap = 1;
  static constexpr std::uint32_t kState = 2;
};

/// Bytes of maps and states of all tiles; each tile has 4 more bytes of flag.
constexpr std::size_t look_back_bytes(std::int64_t tiles, int channels) {
  return static_cast<std::size_t>(tiles) * channels * (sizeof(ScanMap) + sizeof(float));
}

__device__ inline std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/// The next tile to be done, in all threads of the CTA; `shared` is a word of shared memory that
/// nobody else uses.
__device__ inline std::uint32_t take_ticket(std::uint32_t* ticket, std::uint32_t* shared) {
  __syncthreads();  // all have read the last one
  if (threadIdx.x == 0) *shared = atomicAdd(ticket, 1u);
  __syncthreads();
  return *shared;
}

/// The state before tile `tile`, of this thread's channel. `map`: the tile's own; `first`: the
/// state before tile 0, used there only. `last`: nobody comes behind this tile, so nothing is
/// published. `sync()` is a barrier of the calling threads, a multiple of 32.
template <int kChannels, class Sync>
__device__ float look_back(const LookBackChain& chain, int tile, int channel, ScanMap map,
                           float first, bool last, Sync sync) {
  static_assert(kChannels % 32 == 0);
  const auto publish = [&](std::uint32_t flag) {
    sync();  // all have stored; the release below is cumulative over the barrier
    if (channel == 0) store_release(&chain.flags[tile], flag);
  };
  float state = first;
  if (tile > 0) {
    const std::size_t own = static_cast<std::size_t>(tile) * kChannels + channel;
    if (!last) {
      __stcg(reinterpret_cast<float2*>(&chain.maps[own]), make_float2(map.factor, map.sum));
      publish(LookBackChain::kMap);
    }
    // Lane i watches the tile i + 1 before this one. The nearest state, and all maps behind it.
    const int watched = tile - 1 - static_cast<int>(threadIdx.x % 32);
    int distance;
    while (true) {
      const std::uint32_t flag = watched < 0 ? 0 : load_acquire(&chain.flags[watched]);
      const unsigned with_state = __ballot_sync(0xFFFFFFFFu, flag == LookBackChain::kState);
      const unsigned without = __ballot_sync(0xFFFFFFFFu, flag == 0);
      distance = __ffs(static_cast<int>(with_state));  // 1: the tile before this one; 0: none
      if (distance != 0 && (without & ((1u << (distance - 1)) - 1)) == 0) break;
    }
    __syncwarp();
    const std::size_t from = static_cast<std::size_t>(tile - distance) * kChannels + channel;
    state = __ldcg(&chain.states[from]);
    constexpr int kAtOnce = 8;
    for (int begin = 1; begin < distance; begin += kAtOnce) {
      float2 maps[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int step = min(begin + i, distance - 1);
        maps[i] = __ldcg(reinterpret_cast<const float2*>(
            &chain.maps[from + static_cast<std::size_t>(step) * kChannels]));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < distance) state = apply({maps[i].x, maps[i].y}, state);
      }
    }
  }
  if (!last) {
    __stcg(&chain.states[static_cast<std::size_t>(tile) * kChannels + channel], apply(map, state));
    publish(LookBackChain::kState);
  }
  return state;
}

}  // namespace tandem::cuda
