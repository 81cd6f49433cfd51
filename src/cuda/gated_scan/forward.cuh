// gated_scan_forward_kernel: s_t = a_t s_{t-1} + x_t, out_t = silu(gate_t) s_t.
//
// A chain is a batch row (or all packed tokens) by kWidth channels. A CTA walks it from end to end,
// a tile of kTileTokens tokens per step; or a cluster of `ranks` CTAs, each with every ranks-th
// tile (cuda/scan/plan.h). With kPerSequence a chain is a sequence by kWidth channels, its tiles
// begin at its first token (sequence.cuh), and ranks is 1. No ticket, no flag in global memory, no
// workspace: every sum is formed in an order that depends on the shape alone.
//
// A thread has kChannels channels of kTokens neighbouring tokens. kLanes threads lie side by side,
// the others below each other, later tokens in higher lanes and warps. Tiles come as each thread's
// own pieces, or by TMA as rows (forward_slots.cuh). A step:
//
//   all threads     channel threads (kWidth)        barrier
//   wait for x and decays
//   maps (A, X) of own tokens
//   pieces: start copies of the next tile's decays
//   scan over the warp by shuffles
//                                                   __syncthreads: maps of the warps
//   rows: start copies of the next tile
//                   A cluster: compose them, send the tile's map to every CTA's
//                   inbox (st.async); wait for     `arrived`, an mbarrier
//                   all; carry = A carry + X, rank by rank
//                   the state before each warp
//                                                   __syncthreads: states before warps
//   states of own tokens, outputs
//   pieces: start copies of the next tile's gates, of x of the tile after it
//
// Where sequences begin and end is worked out a step ahead (cuda/scan/tile_tokens.cuh): at a first
// token the map is s -> a initial_state + x whatever s is. initial_state is read in the first pass
// over a tile, final_state written in the second: they may be the same memory.
//
// Numerics: fp32; a decay of 0 forgets by a select, not by a product. Both passes have a fast form
// without selects for tokens that neither begin nor end a sequence and whose sums are finite, and
// an exact one that is taken instead, or, when the first turned out not to be finite, after it.
// Both give the same bits: which one runs depends on the other channels of a thread.
//
// Floor: x, decay, gate, out once each. Issue slots come next: 33 instructions per element, four
// of them on the special function unit's two exponentials and reciprocal (docs/ops/gated_scan.md).
#pragma once

#include "cuda/gated_scan/config.h"
#include "cuda/gated_scan/forward_slots.cuh"
#include "cuda/gated_scan/kernels.h"
#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
#include "cuda/gated_scan/sequence.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/two_parts.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/scan/channels.cuh"
#include "cuda/scan/functions.cuh"
#include "cuda/scan/map.cuh"
#include "cuda/scan/tile_tokens.cuh"
#include "cuda/scan/walk.cuh"

namespace tandem::cuda::gated_scan {

template <class Config>
struct ForwardShared {
  ForwardSlots<Config> slots;
  WalkShared<Config::kWarps, Config::kWidth> walk;
  TileKinds<Config> kinds;
};

/// Unpacks a thread's channels of a token.
template <class Config, class Stored, class Piece>
__device__ void unpack(const Piece* pieces, float (&values)[Config::kChannels]) {
  unpack_channels<ForwardSlots<Config>::kStride, Stored>(pieces, values);
}

/// Unpacks x of a thread's channels of a token.
template <class Config>
__device__ void unpack_x(const ForwardShared<Config>& shared, const Place<Config>& place, int step,
                         int token, float (&x)[Config::kChannels]) {
  using Element = typename Config::Element;
  unpack<Config, Element>(shared.slots.x(place, step, token, 0), x);
  if constexpr (Config::kOfProduct) {
    float rest[Config::kChannels];
    unpack<Config, Element>(shared.slots.x(place, step, token, 1), rest);
#pragma unroll
    for (int j = 0; j < Config::kChannels; ++j) x[j] = join_parts<Element>(x[j], rest[j]);
  }
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct OwnTokens {
  float a[Config::kTokens][Config::kChannels];  // the decay; where `replaced`, the state itself
  // The gates, where rows of the next tile may replace them.
  typename Config::Piece gates[Config::kRows ? Config::kTokens : 1][Config::kElementPieces];
  unsigned replaced;  // bit i: the state at token i does not depend on the one before
  unsigned outside;
  bool simple;  // all tokens exist, and none begins or ends a sequence
};

/// Makes the maps of tokens among which sequences begin, or which are not finite.
template <class Config>
__device__ void map_tokens_exactly(const ForwardParams& params, const Place<Config>& place,
                                   const ForwardShared<Config>& shared, int step,
                                   const TokenKind* kinds, OwnTokens<Config>& own,
                                   ScanMap (&maps)[Config::kChannels]) {
#pragma unroll
  for (ScanMap& map : maps) map = {};
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float(&a)[Config::kChannels] = own.a[i];
    float x[Config::kChannels];
    unpack_x(shared, place, step, i, x);
    const int first = kinds[place.row + i].first;
    if (first == TokenKind::kInside) {
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) maps[j] = compose(maps[j], {a[j], x[j]});
    } else {
      // why now: final_state may be the same memory, and is written in the second pass.
      float before[Config::kChannels];
      const bool given = first >= 0 && params.initial_state != nullptr;
      load_state(
          given ? params.initial_state + std::int64_t{first} * params.D + place.channel() : nullptr,
          before, params.D - place.channel());
      own.replaced |= 1u << i;
      if (first == TokenKind::kOutside) own.outside |= 1u << i;
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        a[j] = first >= 0 ? apply({a[j], x[j]}, before[j]) : 0.0f;
        maps[j] = {0.0f, a[j]};
      }
    }
  }
}

/// Makes the maps of the thread's tokens; returns whether they are small.
template <class Config>
__device__ bool map_tokens(const ForwardParams& params, const Place<Config>& place,
                           const ForwardShared<Config>& shared, int step, const TokenKind* kinds,
                           bool complete, OwnTokens<Config>& own,
                           ScanMap (&maps)[Config::kChannels]) {
  own.replaced = own.outside = 0;
  bool begins = false, ends = false;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    begins |= kinds[place.row + i].first != TokenKind::kInside;
    ends |= kinds[place.row + i].last >= 0;
    unpack<Config, typename Config::Decay>(shared.slots.decay(place, i), own.a[i]);
  }
  // why not token by token: loads and functions of neighbouring ones would wait at the branch.
  if (params.log_decay) {
#pragma unroll
    for (float(&a)[Config::kChannels] : own.a) {
#pragma unroll
      for (float& value : a) value = exp_flushed<Config::kExactDecay>(value);
    }
  }
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float x[Config::kChannels];
    unpack_x(shared, place, step, i, x);
#pragma unroll
    for (int j = 0; j < Config::kChannels; ++j) {
      maps[j] = i == 0 ? ScanMap{own.a[0][j], x[j]} : compose<false>(maps[j], {own.a[i][j], x[j]});
    }
  }
  own.simple = complete && !begins && !ends;
  const bool small = !begins && are_small(maps);
  if (!small) map_tokens_exactly(params, place, shared, step, kinds, own, maps);
  return small;
}

/// Stores outputs and final states, from the state before the thread's tokens. Returns whether the
/// states are finite. kGated: whether there are gates, unless kExact; a branch at each token would
/// cost more than the code.
template <class Config, bool kExact, bool kGated>
__device__ bool store_tokens(const ForwardParams& params, const Place<Config>& place,
                             const ForwardShared<Config>& shared, int step, const TokenKind* kinds,
                             int begin, const OwnTokens<Config>& own,
                             float (&state)[Config::kChannels]) {
  using Element = typename Config::Element;
  const int tokens = place.tokens(params.sequences.T, begin);
  const int channels = Config::kAligned ? Config::kChannels : params.D - place.channel();
  Element* to = place.template at<Element>(params.out, begin + place.row);
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int valid = !kExact || i < tokens ? channels : 0;
    float x[Config::kChannels];
    unpack_x(shared, place, step, i, x);
    if (kExact && own.replaced >> i & 1) {
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) state[j] = own.a[i][j];
    } else {
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        state[j] = apply<kExact>({own.a[i][j], x[j]}, state[j]);
      }
    }
    float out[Config::kChannels];
#pragma unroll
    for (int j = 0; j < Config::kChannels; ++j) out[j] = state[j];
    if (kExact ? params.gate.data != nullptr && !(own.outside >> i & 1) : kGated) {
      if constexpr (Config::kRows) {
        unpack_channels<1, Element>(own.gates[i], x);
      } else {
        unpack<Config, Element>(shared.slots.gate(place, i), x);
      }
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) out[j] *= x[j] * logistic<Config::kExact>(x[j]);
    }
    store_channels<Config::kAligned, typename Config::Piece>(to, out, valid);
    to += params.out.time_stride;
    if constexpr (kExact) {
      const int last = kinds[place.row + i].last;
      if (last >= 0 && params.final_state != nullptr) {
        store_state(params.final_state + std::int64_t{last} * params.D + place.channel(), state,
                    valid);
      }
    }
  }
  return are_finite(state);
}

/// Keeps the state of this thread's column before the token at `time`, where the backward wants
/// one.
template <class Config>
__device__ void keep_state(const ForwardParams& params, const Place<Config>& place, int time,
                           float state) {
  const int channel = place.block_channel + threadIdx.x;
  if (time % kStateTokens != 0 || (Config::kOutputs && params.states == nullptr)) return;
  if (time >= params.sequences.T || channel >= params.D) return;
  params.states[(place.b * params.state_rows + time / kStateTokens) * params.D + channel] = state;
}

/// Takes the gates of the thread's tokens to registers.
template <class Config>
__device__ void take_gates(const Place<Config>& place, const ForwardShared<Config>& shared,
                           OwnTokens<Config>& own) {
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
#pragma unroll
    for (int j = 0; j < Config::kElementPieces; ++j) {
      own.gates[i][j] = shared.slots.gate(place, i)[j];
    }
  }
}

template <class Config>
__global__
__launch_bounds__(Config::kThreads, Config::kFewestBlocks) void gated_scan_forward_kernel(
    const __grid_constant__ ForwardArgs<Config> given) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(memory);
  auto& slots = shared.slots;
  Place<Config> place(given);
  start_walk(shared.walk, given.ranks);
  slots.init();
  if constexpr (Config::kRows) __syncthreads();  // why: else racecheck cannot follow the barrier
  follow_stream();
  if constexpr (Config::kPerSequence && Config::kOutputs) {
    clear_outside<Config, typename Config::Element>(given, place, place.b, given.out);
  }
  const ForwardArgs<Config>& params = params_of_walk(given, place);
  const int tile_step = params.ranks * Config::kTileTokens;
  const int first = place.rank * Config::kTileTokens;
  const Walk walk{first, tile_step, (params.sequences.T + tile_step - 1) / tile_step};
  slots.begin(params, place, walk);
  shared.kinds.clear(params, place, 0, first);
  pass_empty_sequences(params, place, params.initial_state, params.final_state);
  __syncthreads();
  shared.kinds.mark(params, 0, first);
  join_walk(params.ranks);
  __syncthreads();
  float carry = 0.0f;
#pragma unroll 1
  for (int step = 0; step < walk.steps; ++step) {
    const int begin = walk.begin_of(step);
    const int warp = threadIdx.x / 32;
    const TokenKind* kinds = shared.kinds.of(step);
    slots.wait_x_and_decay(step);
    OwnTokens<Config> own;
    ScanMap maps[Config::kChannels];
    const bool complete = place.tokens(params.sequences.T, begin) >= Config::kTokens;
    const bool small = map_tokens(params, place, shared, step, kinds, complete, own, maps);
    slots.decay_is_read(params, place, walk, step);
    if constexpr (Config::kRows) take_gates(place, shared, own);
    scan_warp<Config::kLanes, false>(maps, small, &shared.walk.warp_maps[warp][place.column]);
    shared.kinds.clear(params, place, step + 1, begin + tile_step);
    __syncthreads();
    slots.all_decays_are_read(params, place, walk, step);
    pass_states<false>(
        shared.walk, {params.ranks, place.rank, step}, carry, [&](int warp_of_state, float state) {
          keep_state(params, place, begin + warp_of_state * Config::kWarpTokens, state);
        });
    shared.kinds.mark(params, step + 1, begin + tile_step);
    __syncthreads();
    if constexpr (Config::kOutputs) {
      slots.wait_gate();
      const auto pass = [&](auto exact, auto gated) {
        float state[Config::kChannels];
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          state[j] = apply(maps[j], shared.walk.warp_states[warp][place.column + j]);
        }
        return store_tokens<Config, exact(), gated()>(params, place, shared, step, kinds, begin,
                                                      own, state);
      };
      constexpr std::false_type kNo;
      constexpr std::true_type kYes;
      const auto fast_pass = [&] {
        return params.gate.data != nullptr ? pass(kNo, kYes) : pass(kNo, kNo);
      };
      // why all of the warp: it would wait for the lanes that take the other way.
      const bool simple = __all_sync(0xFFFFFFFFu, own.simple);
      if (place.channel() < params.D && (!simple || !fast_pass())) pass(kYes, kNo);
    }
    slots.rest_is_read(params, place, walk, step);
  }
}

template <class Config>
ForwardKernel forward_kernel() {
  constexpr std::size_t kBytes = sizeof(ForwardShared<Config>);
  constexpr std::size_t kOwnBytes = Config::kPerSequence ? sizeof(ForwardParams) : 0;
  static_assert(kBytes + kOwnBytes <= kSharedMemoryPerBlock);
  return {
      .width = Config::kWidth,
      .tile_tokens = Config::kTileTokens,
      .blocks_per_sm = Config::blocks_per_sm(kBytes + kOwnBytes),
      .rows = Config::kRows ? Config::kTileTokens : 0,
      .launch = [](const char* name, const ForwardParams& params, unsigned chains, void* stream) {
        ForwardArgs<Config> args{};
        static_cast<ForwardParams&>(args) = params;
        if constexpr (Config::kRows) {
          args.maps = forward_maps(params, kDTypeOf<typename Config::Element>,
                                   kDTypeOf<typename Config::Decay>, chains / params.channel_blocks,
                                   Config::kTileTokens);
        }
        launch_kernel(name, gated_scan_forward_kernel<Config>,
                      {.blocks = chains * params.ranks,
                       .threads = Config::kThreads,
                       .cluster = static_cast<unsigned>(params.ranks),
                       .shared_bytes = kBytes},
                      static_cast<cudaStream_t>(stream), args);
      }};
}

}  // namespace tandem::cuda::gated_scan
