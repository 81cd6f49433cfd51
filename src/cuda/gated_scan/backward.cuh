// gated_scan_backward_kernel: the gradients of gated_scan, from the last token to the first.
//
// The same walk as gated_scan_forward_kernel's (forward.cuh), in the opposite direction. r, the
// gradient by the state behind a token, goes through it by r -> a (silu(gate) d_out + r): a map
// with the forward's A. The states come from the state before each tile, which the forward's kernel
// left in `states`; within the tile they are computed again. So a step is
//
//   all threads                  channel threads                          barrier
//   wait for own copies of x, decay, gate, d_out
//   a, silu(gate) d_out, silu'(gate) d_out of own tokens
//   maps of states and of gradients, scans over the warp
//                                                                         __syncthreads
//                                [kWidth, 2 kWidth): states before warps
//                                [0, kWidth): gradients behind each warp,
//                                through the cluster                      mbarrier `arrived`
//                                                                         __syncthreads
//   states of own tokens, d_gate
//   start copies of the tile kStages steps ahead
//   dx, d_decay, and d_initial_state at first tokens
//
// Without d_decay and d_gate there are no states, and x is not read. Fast and exact forms of both
// passes as in the forward.
//
// Floor: seven tensors once; x and decay are read once more for the states, 9/7 of that less what
// L2 still holds. Issue slots bind: 16 elements per thread, 84 instructions per element.
#pragma once

#include "cuda/gated_scan/backward_tokens.cuh"
#include "cuda/gated_scan/config.h"
#include "cuda/gated_scan/kernels.h"
#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/scan/walk.cuh"

namespace tandem::cuda {

/// Starts loading the thread's part of the tile that begins at `begin`.
template <class Config>
__device__ void load_tile(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                          BackwardShared<Config>& shared, int stage, int begin) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  using Decay = typename Config::Decay;
  const int channels = params.D - place.channel();
  const int tokens = place.tokens(params.sequences.T, begin);
  const auto load = [&](const TokenTensor& tensor, auto stored, int of) {
    using Stored = decltype(stored);
    const auto* from = place.template at<const Stored>(tensor, begin + place.row);
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      copy_channels<Config::kAligned, Config::kThreads>(
          &shared.slots[stage][i * Shared::kOfToken + of][threadIdx.x], from,
          i < tokens ? channels : 0);
      from += tensor.time_stride;
    }
  };
  if (params.states != nullptr) load(params.x, Element{}, 0);
  load(params.decay, Decay{}, Shared::kDecay);
  if (params.gate.data != nullptr) load(params.gate, Element{}, Shared::kGate);
  load(params.d_out, Element{}, Shared::kOut);
}

/// The states before each warp, by threads [kWidth, 2 kWidth).
template <class Config>
__device__ void pass_tile_states(BackwardShared<Config>& shared, float state) {
  const int column = threadIdx.x - Config::kWidth;
  if (column < 0 || column >= Config::kWidth) return;
  for_each_warp<false>(shared.warp_maps, column, [&](int warp, ScanMap map) {
    shared.warp_states[warp][column] = state;
    state = apply(map, state);
  });
}

/// Of the column that pass_tile_states passes on, before the tile at `begin`.
template <class Config>
__device__ float load_tile_state(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                                 int begin) {
  static_assert(Config::kTileTokens % kStateTokens == 0);
  const int column = threadIdx.x - Config::kWidth;
  const int channel = place.block_channel + column;
  if (params.states == nullptr || column < 0 || column >= Config::kWidth) return 0.0f;
  if (channel >= params.D || begin < 0 || begin >= params.sequences.T) return 0.0f;
  return __ldcg(
      &params.states[(place.b * params.state_rows + begin / kStateTokens) * params.D + channel]);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gated_scan_backward_kernel(
    const __grid_constant__ ScanBackwardParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(memory);
  const ScanPlace<Config> place(params);
  constexpr int kStages = Config::kStages;
  const int tiles = (params.sequences.T + Config::kTileTokens - 1) / Config::kTileTokens;
  const int first = (tiles - 1 - place.rank) * Config::kTileTokens;
  const int tile_step = params.ranks * Config::kTileTokens;
  const bool has_states = params.states != nullptr;
  start_walk(shared.walk, params.ranks);
  follow_stream();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    load_tile(params, place, shared, stage, first - stage * tile_step);
    cutlass::arch::cp_async_fence();
  }
  float tile_state = load_tile_state(params, place, first);
  shared.kinds.clear(params, place, 0, first);
  pass_empty_sequences(params, place, params.d_final_state, params.d_initial_state);
  __syncthreads();
  shared.kinds.mark(params, 0, first);
  join_walk(params.ranks);
  __syncthreads();
  float carry = 0.0f;
  const int steps = (tiles + params.ranks - 1) / params.ranks;
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int begin = first - step * tile_step;
    const int warp = threadIdx.x / 32;
    int row = place.row;
    asm volatile("" : "+r"(row));  // why: else ptxas spills three registers in fp16
    const TokenKind* kinds = shared.kinds.of(step) + row;
    cutlass::arch::cp_async_wait<kStages - 1>();
    TokenGradients<Config> own;
    differentiate_gates(params, shared, stage, kinds, own);
    if (has_states) {
      ScanMap state_maps[kChannels];
      const bool small = map_states(params, place, shared, stage, kinds, own, state_maps);
      scan_warp<Config::kLanes, false>(state_maps, small, &shared.warp_maps[warp][place.column]);
      put_aside(shared, stage, state_maps);  // why: registers are short
    }
    ScanMap gradient_maps[kChannels];
    const bool small = map_gradients(params, place, kinds, own, gradient_maps);
    scan_warp<Config::kLanes, true>(gradient_maps, small,
                                    &shared.walk.warp_maps[warp][place.column]);
    shared.kinds.clear(params, place, step + 1, begin - tile_step);
    __syncthreads();
    if (has_states) pass_tile_states(shared, tile_state);
    tile_state = load_tile_state(params, place, begin - tile_step);
    pass_states<true>(shared.walk, {params.ranks, place.rank, step}, carry, [](int, float) {});
    shared.kinds.mark(params, step + 1, begin - tile_step);
    __syncthreads();
    float before[Config::kTokens][kChannels] = {};
    if (has_states) {
      const auto pass = [&](auto exact) {
        float state[kChannels];
        take_states(shared, stage, &shared.warp_states[warp][place.column], state);
        return store_gate_gradients<Config, exact()>(params, place, shared, stage, kinds, begin,
                                                     own, state, before);
      };
      if (!own.simple || !pass(std::false_type{})) pass(std::true_type{});
    }
    load_tile(params, place, shared, stage, begin - kStages * tile_step);
    cutlass::arch::cp_async_fence();
    const auto pass = [&](auto exact) {
      float behind[kChannels];
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        behind[j] = apply(gradient_maps[j], shared.walk.warp_states[warp][place.column + j]);
      }
      return store_gradients<Config, exact()>(params, place, kinds, begin, own, before, behind);
    };
    if (!own.simple || !pass(std::false_type{})) pass(std::true_type{});
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

template <class Config>
ScanBackwardKernel backward_kernel() {
  constexpr std::size_t kBytes = sizeof(BackwardShared<Config>);
  return {.width = Config::kWidth,
          .tile_tokens = Config::kTileTokens,
          .blocks_per_sm = 1,  // by registers
          .launch = [](const char* name, const ScanBackwardParams& params, unsigned chains,
                       void* stream) {
            launch_kernel(name, gated_scan_backward_kernel<Config>,
                          {.blocks = chains * params.ranks,
                           .threads = Config::kThreads,
                           .cluster = static_cast<unsigned>(params.ranks),
                           .shared_bytes = kBytes},
                          static_cast<cudaStream_t>(stream), params);
          }};
}

}  // namespace tandem::cuda
