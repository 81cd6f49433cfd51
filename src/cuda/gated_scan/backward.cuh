// gated_scan_backward_kernel: the gradients of gated_scan, from the last token to the first.
//
// Walks as gated_scan_forward_kernel does (forward.cuh), in the opposite direction. r, the gradient
// by the state behind a token, passes it by r -> a (silu(gate) d_out + r): a map with the forward's
// A. States are computed again within each tile, from the state before it. So a step is
//
//   all threads     channel threads                 barrier
//   wait for x, decay, gate, d_out
//   a, silu(gate) d_out, silu'(gate) d_out of own tokens
//   maps of states and of gradients, scans over the warp
//                                                   __syncthreads
//                   [0, kWidth): gradients behind each warp's tokens, through the cluster
//                   [kWidth, 2 kWidth): states before each warp's tokens
//   start copies of the tile kStages steps ahead (rows)
//                                                   __syncthreads
//   states of own tokens, d_gate
//   dx, d_decay, and d_initial_state at first tokens
//                                                   sync_warpgroup, and its rows leave
//
// Loads and stores have two forms. With kRows (16-bit tensors that TMA takes) a warp has whole rows
// of 64 channels, a thread 2 channels of 8 tokens, so no map crosses lanes and no address is
// computed per token. The kernel computes the states before its tiles itself, in a walk forward
// over x and decays (keep_states) just before: the pipeline does not run dry between the two.
// Without kRows each thread has its own pieces of 8 channels by cp.async, or single elements, and
// the forward's kernel, run without outputs, left the states. In neither form states are computed
// that the caller gives.
//
// Without d_decay and d_gate no states are needed, and x is not read.
//
// Floor: seven tensors once; x and decay are read once more for the states, 9/7 of that less what
// L2 still holds (568 instead of 470 MB at B8 T4096 D1024). 62.6 million warp instructions there,
// 60 per element, of both walks: issue slots are 40 % busy, so bytes bind.
#pragma once

#include "cuda/gated_scan/backward_tokens.cuh"
#include "cuda/gated_scan/config.h"
#include "cuda/gated_scan/kernels.h"
#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
#include "cuda/gated_scan/row_maps.h"
#include "cuda/gated_scan/sequence.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/scan/walk.cuh"

namespace tandem::cuda::gated_scan {

/// Starts loading the tile that begins at `begin`: the thread's own channels, or all rows.
template <class Config>
__device__ void load_tile(const BackwardArgs<Config>& params, const Place<Config>& place,
                          BackwardShared<Config>& shared, int stage, int begin) {
  using Shared = BackwardShared<Config>;
  const bool has_states = params.states != nullptr;
  const bool has_gate = params.gate.data != nullptr;
  if constexpr (Config::kRows) {
    if (threadIdx.x != Config::kLoader) return;
    auto& slots = shared.slots;
    slots.expect(stage, 2 + has_states + has_gate);
    slots.load(place, stage, Shared::kDecay, params.maps.decay, begin);
    slots.load(place, stage, Shared::kOut, params.maps.d_out, begin);
    if (has_states) slots.load(place, stage, 0, params.maps.x, begin);
    if (has_gate) slots.load(place, stage, Shared::kGate, params.maps.gate, begin);
  } else {
    using Element = typename Config::Element;
    constexpr int kOfToken = Shared::kOfToken;
    const auto to = [&](int of) { return &shared.slots.slots[stage][of][threadIdx.x]; };
    if (has_states) {
      load_tokens<Config, Element, kOfToken>(params, place, params.x, to(0), begin);
    }
    load_tokens<Config, typename Config::Decay, kOfToken>(params, place, params.decay,
                                                          to(Shared::kDecay), begin);
    if (has_gate) {
      load_tokens<Config, Element, kOfToken>(params, place, params.gate, to(Shared::kGate), begin);
    }
    load_tokens<Config, Element, kOfToken>(params, place, params.d_out, to(Shared::kOut), begin);
    cutlass::arch::cp_async_fence();
  }
}

/// Stores the gradients of a warpgroup's tokens, which lie as rows in shared memory.
template <class Config>
__device__ void store_tile(const BackwardArgs<Config>& params, const Place<Config>& place,
                           BackwardShared<Config>& shared, int begin) {
  using Shared = BackwardShared<Config>;
  fence_shared_for_async_proxy();
  sync_warpgroup(place.warp / 4);
  // why not before 0: a copy to negative rows only is an illegal instruction.
  if (threadIdx.x % 128 != 0 || begin < 0) return;
  auto& slots = shared.slots;
  if (params.dx.data != nullptr) slots.store(place, 0, params.maps.dx, begin);
  if (params.d_decay.data != nullptr) {
    slots.store(place, Shared::kDDecay, params.maps.d_decay, begin);
  }
  if (params.d_gate.data != nullptr) {
    slots.store(place, Shared::kDGate, params.maps.d_gate, begin);
  }
}

/// Passes the state on to before each warp. Threads [kWidth, 2 kWidth) do, a column each.
template <class Config>
__device__ void pass_tile_states(BackwardShared<Config>& shared, float state) {
  const int column = threadIdx.x - Config::kWidth;
  if (column < 0 || column >= Config::kWidth) return;
  for_each_warp<false>(shared.warp_maps, column, [&](int warp, ScanMap map) {
    shared.warp_states[warp][column] = state;
    state = apply(map, state);
  });
}

/// Loads the state before the tile at `begin`, of the column that this thread passes on in
/// pass_tile_states.
template <class Config>
__device__ float load_tile_state(const BackwardParams& params, const Place<Config>& place,
                                 int begin) {
  static_assert(Config::kTileTokens % kStateTokens == 0);
  const int column = threadIdx.x - Config::kWidth;
  const int channel = place.block_channel + column;
  if (params.states == nullptr || column < 0 || column >= Config::kWidth) return 0.0f;
  if (channel >= params.D || begin < 0 || begin >= params.sequences.T) return 0.0f;
  return __ldcg(
      &params.states[(place.b * params.state_rows + begin / kStateTokens) * params.D + channel]);
}

/// Keeps the states before all tiles of the chain, by a first walk over x and the decays alone,
/// which take half a stage each. One barrier per step: the maps of the warps alternate between two
/// arrays, and the column threads pass on the state while the others are at the next tile. Returns
/// the number of steps, and has started to load the first tiles of the walk back.
template <class Config>
__device__ int keep_states(const BackwardArgs<Config>& params, const Place<Config>& place,
                           BackwardShared<Config>& shared, int tiles, int first_back) {
  constexpr int kHalves = 2 * Config::kStages;
  constexpr int kTileTokens = Config::kTileTokens;
  static_assert(kTileTokens == kStateTokens && Config::kWidth <= 64);
  auto& slots = shared.slots;
  const int steps = (tiles + params.ranks - 1) / params.ranks;
  const int tile_step = params.ranks * kTileTokens;
  const int first = place.rank * kTileTokens;
  const auto load = [&](int step) {
    if (threadIdx.x != Config::kLoader) return;
    const int half = step % kHalves;
    slots.expect_half(half, 2);
    slots.load_half(place, half, 0, params.maps.x, first + step * tile_step);
    slots.load_half(place, half, 1, params.maps.decay, first + step * tile_step);
  };
  for (int step = 0; step < min(steps, kHalves); ++step) load(step);
  shared.kinds.clear(params, place, 0, first);
  shared.kinds.clear(params, place, 1, first + tile_step);
  __syncthreads();
  shared.kinds.mark(params, 0, first);
  shared.kinds.mark(params, 1, first + tile_step);
  __syncthreads();
  float carry = 0.0f;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int begin = first + step * tile_step;
    const TokenKind* kinds = shared.kinds.of(step) + place.row;
    const int half = step % kHalves;
    slots.full_half[half].wait(step / kHalves % 2);
    TokenGradients<Config> own;
    own.simple = are_inside<Config>(kinds);
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      own.x[i] = *slots.half_piece(place, half, i, 0);
      unpack_channels<1, typename Config::Decay>(slots.half_piece(place, half, i, 1), own.a[i]);
    }
    take_exponentials(params, own);
    ScanMap maps[Config::kChannels];
    auto& warp_maps = step % 2 == 0 ? shared.walk.warp_maps : shared.warp_maps;
    const bool small = map_states(params, place, shared, 0, kinds, own, maps);
    scan_warp<Config::kLanes, false>(maps, small, &warp_maps[place.warp][place.column]);
    shared.kinds.clear(params, place, step + 2, begin + 2 * tile_step);
    __syncthreads();
    if (step + kHalves < steps) load(step + kHalves);
    if (threadIdx.x < Config::kWidth) {
      const int column = threadIdx.x;
      const float state =
          pass_tile(shared.walk, warp_maps, {params.ranks, place.rank, step}, column, carry);
      const int channel = place.block_channel + column;
      if (begin < params.sequences.T && channel < params.D) {
        __stcg(
            &params
                 .states[(place.b * params.state_rows + begin / kStateTokens) * params.D + channel],
            state);
      }
    }
    shared.kinds.mark(params, step + 2, begin + 2 * tile_step);
  }
#pragma unroll
  for (int stage = 0; stage < Config::kStages; ++stage) {
    load_tile(params, place, shared, stage, first_back - stage * tile_step);
  }
  // Waits until all states are there, those of the other CTAs too, and nobody reads maps or kinds.
  if (params.ranks > 1) {
    sync_cluster();
  } else {
    __syncthreads();
  }
  return steps;
}

template <class Config>
__global__
__launch_bounds__(Config::kThreads, Config::kFewestBlocks) void gated_scan_backward_kernel(
    const __grid_constant__ BackwardArgs<Config> given) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(memory);
  Place<Config> place(given);
  constexpr int kStages = Config::kStages;
  int tiles = (given.sequences.T + Config::kTileTokens - 1) / Config::kTileTokens;
  int first = (tiles - 1 - place.rank) * Config::kTileTokens;
  const int tile_step = given.ranks * Config::kTileTokens;
  const bool has_channels = Config::kRows || place.channel() < given.D;
  const bool has_states = given.states != nullptr;
  start_walk(shared.walk, given.ranks);
  if constexpr (Config::kRows) {
    if (threadIdx.x == Config::kLoader) shared.slots.init();
    __syncthreads();  // why: racecheck cannot follow barriers that are used before one
  }
  follow_stream();
  if constexpr (Config::kPerSequence) {
    using Element = typename Config::Element;
    clear_outside<Config, Element>(given, place, place.b, given.dx);
    clear_outside<Config, typename Config::Decay>(given, place, place.b, given.d_decay);
    clear_outside<Config, Element>(given, place, place.b, given.d_gate);
  }
  const BackwardArgs<Config>& params = params_of_walk(given, place);
  if constexpr (Config::kPerSequence) {
    tiles = (params.sequences.T + Config::kTileTokens - 1) / Config::kTileTokens;
    first = (tiles - 1) * Config::kTileTokens;
  }
  bool loaded = false;
  int passed = 0;  // steps of the first walk
  if constexpr (Config::kRows) {
    if (has_states && !params.states_given) {
      join_walk(params.ranks);
      passed = keep_states(params, place, shared, tiles, first);
      loaded = true;
    }
  }
  if (!loaded) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      load_tile(params, place, shared, stage, first - stage * tile_step);
    }
  }
  float tile_state = load_tile_state(params, place, first);
  shared.kinds.clear(params, place, 0, first);
  pass_empty_sequences(params, place, params.d_final_state, params.d_initial_state);
  __syncthreads();
  shared.kinds.mark(params, 0, first);
  if (!loaded) join_walk(params.ranks);
  __syncthreads();
  float carry = 0.0f;
  const int steps = (tiles + params.ranks - 1) / params.ranks;
  const int warp = place.warp;
  int stage = 0, phase = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int begin = first - step * tile_step;
    int row = place.row;
    asm volatile("" : "+r"(row));  // why: else ptxas keeps more addresses than it has registers
    const TokenKind* kinds = shared.kinds.of(step) + row;
    bool complete = true;
    if constexpr (Config::kRows) {
      if (threadIdx.x % 128 == 0) wait_stores_read();  // of the last step; a barrier follows
      shared.slots.full[stage].wait(phase);
    } else {
      cutlass::arch::cp_async_wait<kStages - 1>();
      complete = place.tokens(params.sequences.T, begin) >= Config::kTokens;
    }
    TokenGradients<Config> own;
    differentiate_gates(params, place, shared, stage, kinds, complete, own);
    constexpr bool kPutAside = !Config::kRows;  // why: registers are short
    ScanMap state_maps[Config::kChannels];
    if (has_states) {
      const bool small = map_states(params, place, shared, stage, kinds, own, state_maps);
      scan_warp<Config::kLanes, false>(state_maps, small, &shared.warp_maps[warp][place.column]);
      if constexpr (kPutAside) put_aside(shared, stage, state_maps);
    }
    ScanMap gradient_maps[Config::kChannels];
    const bool small = map_gradients(params, place, kinds, own, gradient_maps);
    scan_warp<Config::kLanes, true>(gradient_maps, small,
                                    &shared.walk.warp_maps[warp][place.column]);
    shared.kinds.clear(params, place, step + 1, begin - tile_step);
    __syncthreads();
    if constexpr (Config::kRows) {
      load_tile(params, place, shared, stage, begin - kStages * tile_step);
    }
    if (has_states) pass_tile_states(shared, tile_state);
    tile_state = load_tile_state(params, place, begin - tile_step);
    pass_states<true>(shared.walk, {params.ranks, place.rank, passed + step}, carry,
                      [](int, float) {});
    shared.kinds.mark(params, step + 1, begin - tile_step);
    __syncthreads();
    // why all of the warp: it would wait for the lanes that take the other way.
    const bool simple = __all_sync(0xFFFFFFFFu, own.simple);
    typename TokenGradients<Config>::Values before = {};
    if (has_states && has_channels) {
      const auto pass = [&](auto exact) {
        if constexpr (kPutAside) take_again(shared, stage, state_maps);
        float state[Config::kChannels];
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          state[j] = apply(state_maps[j], shared.warp_states[warp][place.column + j]);
        }
        return store_gate_gradients<Config, exact()>(params, place, shared, stage, kinds, begin,
                                                     own, state, before);
      };
      if (!simple || !pass(std::false_type{})) pass(std::true_type{});
    }
    if constexpr (!Config::kRows) {
      load_tile(params, place, shared, stage, begin - kStages * tile_step);
    }
    const auto pass = [&](auto exact) {
      float behind[Config::kChannels];
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        behind[j] = apply(gradient_maps[j], shared.walk.warp_states[warp][place.column + j]);
      }
      return store_gradients<Config, exact()>(params, place, shared, kinds, begin, own, before,
                                              behind);
    };
    if (has_channels && (!simple || !pass(std::false_type{}))) pass(std::true_type{});
    if constexpr (Config::kRows) store_tile(params, place, shared, begin);
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  // Waits for copies to and from shared memory, which ends with the CTA.
  if constexpr (Config::kRows) {
    if (threadIdx.x == Config::kLoader) shared.slots.drain(stage, phase);
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
}

template <class Config>
BackwardKernel backward_kernel() {
  constexpr std::size_t kBytes = sizeof(BackwardShared<Config>);
  constexpr std::size_t kOwnBytes = Config::kPerSequence ? sizeof(BackwardParams) : 0;
  static_assert(kBytes + kOwnBytes <= kSharedMemoryPerBlock);
  return {
      .width = Config::kWidth,
      .tile_tokens = Config::kTileTokens,
      .blocks_per_sm = Config::blocks_per_sm(kBytes + kOwnBytes),
      .rows = Config::kRows ? Config::kTileTokens : 0,
      .launch = [](const char* name, const BackwardParams& params, unsigned chains, void* stream) {
        const LaunchShape shape{.blocks = chains * params.ranks,
                                .threads = Config::kThreads,
                                .cluster = static_cast<unsigned>(params.ranks),
                                .shared_bytes = kBytes};
        BackwardArgs<Config> args{};
        static_cast<BackwardParams&>(args) = params;
        if constexpr (Config::kRows) {
          args.maps = backward_maps(params, kDTypeOf<typename Config::Element>,
                                    chains / params.channel_blocks, Config::kTileTokens,
                                    4 * Config::kWarpTokens);
        }
        launch_kernel(name, gated_scan_backward_kernel<Config>, shape,
                      static_cast<cudaStream_t>(stream), args);
      }};
}

}  // namespace tandem::cuda::gated_scan
