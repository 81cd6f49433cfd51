// linear_scan_forward_kernel: out = silu(gate) s, s_t = a_t s_{t-1} + W u_t, in one launch.
//
// A tile is 64 channels per warpgroup of the scan role by 64 or 256 packed tokens. Its x,
// transposed, is one product
//
//   x^T [channels, tokens] = W [channels, d] u^T [d, tokens]
//
// on wgmma with both operands in shared memory, 64 columns of d at a time, and stays in the
// accumulator. There a lane holds two tokens of every eight, of two channels: it composes its two
// maps (a, x), the four lanes of a channel exchange theirs by shuffles, and the blocks of eight
// follow one another. Decays and gates come as panels of 64 tokens by 64 channels, in the layout
// that transposing ldmatrix turns into the accumulator's; outputs replace the gates.
//
// The state before a tile comes from the tiles before it, which other CTAs have: carry.cuh. Tiles
// are taken in the order of time, so that these have been taken earlier.
//   look-back  scan from 0, keeping each token's factor to the tile's begin; publish the map; get
//              the state before the tile out of the maps of up to 32; add factor times state
//   chain      wait for the state of the tile before; scan; publish the state: half the work, where
//              there are columns enough to keep the machine busy meanwhile. Factors of 0, which
//              forget inf and NaN too, are looked for once per tile, not at each factor
//
// Role    threads                work
//   load  warp 0, one thread     tickets; W, u, decays, gates of this tile and the next, by TMA
//         warp 1                 what the tokens are (tokens.cuh); states of empty sequences
//         warp 2, one thread     stores outputs by TMA, and x where it is kept
//   scan  warpgroups 1, 2        64 channels each: product, scan, gates, outputs
// Shared memory: a ring of (channels + tokens) x 64 elements, 96 KB (two CTAs per SM) or 192 KB.
// Registers: x and, with look-back, a factor per element: 64 to 128 per thread.
//
//   load  ~ W u, tile n+1 ~ ~ a gate ~   ...
//   scan  = W u^T = | scan, publish | wait for the state | gates, store |  = W u^T = ...
// ring: load fills, scan empties; ticket_ring: load -> warp 1; tile_ring: warp 1 -> scan, which
// gives both back.
//
// Floor: u, decays, gates, out and W once, or 2 B T d D flops. Numerics: products, scan and gates
// fp32, x never rounded; a factor of 0 forgets exactly. Sums have one order: bitwise repeatable.
// Limits: T < 2^31 - 256; less than 2^31 tiles.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/linear_scan/forward_config.h"
#include "cuda/linear_scan/forward_load.cuh"
#include "cuda/linear_scan/forward_scan.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::linear_scan {

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kCtasPerSm) void linear_scan_forward_kernel(
    const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(shared_memory);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);

  if (threadIdx.x == 32) {
    for (const CUtensorMap* map :
         {&params.u_map, &params.weight_map, &params.decay_map, &params.out_map}) {
      prefetch_tensor_map(*map);
    }
    if (params.problem.gate.data != nullptr) prefetch_tensor_map(params.gate_map);
    if (Config::kKeeps && params.problem.x.data != nullptr) prefetch_tensor_map(params.x_map);
  }
  if (threadIdx.x == 0) {
    constexpr int kScanThreads = 128 * Config::kWarpgroups;
    shared.ring.init(1, kScanThreads + kStoreArrivals);
    shared.ticket_ring.init(1, 1);
    shared.tile_ring.init(32, kScanThreads + kStoreArrivals);
    constexpr int kPairs = Config::kTileSlots * Config::kWarpgroups;
    for (int i = 0; i < kPairs; ++i) shared.outputs_ready[0][i].init(128);
    for (int i = 0; i < kPairs * Config::kTokenPanels && Config::kKeeps; ++i) {
      shared.x_ready[0][0][i].init(128);
    }
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();

  if (warpgroup == 0) {
    if constexpr (!Config::kAlone) {
      cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    }
    if (warp == 0) {
      if (threadIdx.x == 0) load_tiles<Config>(params, shared);
    } else if (warp == 1) {
      look_at_tokens<Config>(params, shared);
      pass_empty_sequences<Config>(params.problem);
    } else if (threadIdx.x == 64) {
      store_outputs<Config>(params, shared);
    }
  } else {
    if constexpr (!Config::kAlone) {
      cutlass::arch::warpgroup_reg_alloc<Config::kScanRegisters>();
    }
    scan_tiles<Config>(params, shared, warpgroup - 1);
  }
}

template <class Config>
void launch_forward(const char* name, const ForwardParams& params, unsigned blocks, void* stream) {
  static_assert(sizeof(ForwardShared<Config>) <= Config::kSharedLimit);
  launch_kernel(name, linear_scan_forward_kernel<Config>,
                {.blocks = blocks,
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(ForwardShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::linear_scan
