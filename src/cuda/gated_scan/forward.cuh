// gated_scan_forward_kernel: s_t = a_t s_{t-1} + x_t, out_t = silu(gate_t) s_t.
//
// A chain is a batch row (or all packed tokens) by kWidth channels. A CTA walks it from end to end,
// a tile of kTileTokens tokens per step; or a cluster of `ranks` CTAs, each with every ranks-th
// tile (cuda/scan/plan.h). No ticket, no flag in global memory, no workspace: every sum is formed
// in an order that depends on the shape alone.
//
// A thread has 8 channels of kTokens neighbouring tokens, its own pieces of shared memory and its
// own cp.async groups: loads wait for no barrier. kLanes threads lie side by side, the others below
// each other, later tokens in higher lanes and warps. A step:
//
//   all threads                  channel threads (the first kWidth)       barrier
//   wait for own copies
//   maps (A, X) of own tokens
//   scan over the warp by shuffles
//                                                                         __syncthreads
//                                in a cluster: the tile's map to every
//                                CTA's inbox (st.async); wait for all     mbarrier `arrived`
//                                carry = A carry + X, rank by rank
//                                the state before each warp
//                                                                         __syncthreads
//   states of own tokens, outputs
//   start copies of the tile kStages steps ahead
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
// Without outputs (kOutputs false) it leaves the state before every kStateTokens-th token.
// Floor: x, decay, gate, out once each; then issue slots, 33 instructions per element.
#pragma once

#include "cuda/gated_scan/config.h"
#include "cuda/gated_scan/kernels.h"
#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/scan/channels.cuh"
#include "cuda/scan/functions.cuh"
#include "cuda/scan/map.cuh"
#include "cuda/scan/tile_tokens.cuh"
#include "cuda/scan/walk.cuh"

namespace tandem::cuda {

template <class Config>
struct ForwardShared {
  // Of a token, in this order: x, decay, gate.
  static constexpr int kDecay = Config::kElementPieces;
  static constexpr int kGate = kDecay + Config::kDecayPieces;
  static constexpr int kOfToken = kGate + (Config::kOutputs ? Config::kElementPieces : 0);

  uint4 slots[Config::kStages][Config::kTokens * kOfToken][Config::kThreads];
  WalkShared<Config::kWarps, Config::kWidth> walk;
  TileKinds<Config> kinds;

  __device__ const uint4* piece(int stage, int token, int of) const {
    return &slots[stage][token * kOfToken + of][threadIdx.x];
  }
};

/// Starts loading the thread's part of the tile that begins at `begin`.
template <class Config>
__device__ void load_tile(const ScanForwardParams& params, const ScanPlace<Config>& place,
                          ForwardShared<Config>& shared, int stage, int begin) {
  using Shared = ForwardShared<Config>;
  using Element = typename Config::Element;
  using Decay = typename Config::Decay;
  constexpr bool kAligned = Config::kAligned;
  constexpr int kStride = Config::kThreads;
  const int channels = params.D - place.channel();
  const int tokens = place.tokens(params.sequences.T, begin);
  const auto* x = place.template at<const Element>(params.x, begin + place.row);
  const auto* decay = place.template at<const Decay>(params.decay, begin + place.row);
  const auto* gate = place.template at<const Element>(params.gate, begin + place.row);
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int valid = i < tokens ? channels : 0;
    uint4* piece = &shared.slots[stage][i * Shared::kOfToken][threadIdx.x];
    copy_channels<kAligned, kStride>(piece, x, valid);
    copy_channels<kAligned, kStride>(piece + Shared::kDecay * kStride, decay, valid);
    if (Config::kOutputs && params.gate.data != nullptr) {
      copy_channels<kAligned, kStride>(piece + Shared::kGate * kStride, gate, valid);
    }
    x += params.x.time_stride;
    decay += params.decay.time_stride;
    gate += params.gate.time_stride;
  }
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct OwnTokens {
  float a[Config::kTokens][kChannels];  // the decay; where `replaced`, the state itself
  unsigned replaced;                    // bit i: the state at token i does not go by the one before
  unsigned outside;
  bool simple;  // tokens that neither begin nor end a sequence
};

/// The maps of tokens among which sequences begin, or which are not finite.
template <class Config>
__device__ void map_tokens_exactly(const ScanForwardParams& params, const ScanPlace<Config>& place,
                                   const ForwardShared<Config>& shared, int stage,
                                   const TokenKind* kinds, OwnTokens<Config>& own,
                                   ScanMap (&maps)[kChannels]) {
#pragma unroll
  for (ScanMap& map : maps) map = {};
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float(&a)[kChannels] = own.a[i];
    float x[kChannels];
    unpack_channels<Config::kThreads, typename Config::Element>(shared.piece(stage, i, 0), x);
    const int first = kinds[place.row + i].first;
    if (first == TokenKind::kInside) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) maps[j] = compose(maps[j], {a[j], x[j]});
    } else {
      // why now: final_state may be the same memory, and is written in the second pass.
      float before[kChannels];
      const bool given = first >= 0 && params.initial_state != nullptr;
      load_state(
          given ? params.initial_state + std::int64_t{first} * params.D + place.channel() : nullptr,
          before, params.D - place.channel());
      own.replaced |= 1u << i;
      if (first == TokenKind::kOutside) own.outside |= 1u << i;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        a[j] = first >= 0 ? apply({a[j], x[j]}, before[j]) : 0.0f;
        maps[j] = {0.0f, a[j]};
      }
    }
  }
}

/// The maps of the thread's tokens; whether they are small.
template <class Config>
__device__ bool map_tokens(const ScanForwardParams& params, const ScanPlace<Config>& place,
                           const ForwardShared<Config>& shared, int stage, const TokenKind* kinds,
                           OwnTokens<Config>& own, ScanMap (&maps)[kChannels]) {
  using Shared = ForwardShared<Config>;
  own.replaced = own.outside = 0;
  bool begins = false, ends = false;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const TokenKind kind = kinds[place.row + i];
    begins |= kind.first != TokenKind::kInside;
    ends |= kind.last >= 0;
    unpack_channels<Config::kThreads, typename Config::Decay>(
        shared.piece(stage, i, Shared::kDecay), own.a[i]);
    if (params.log_decay) {
#pragma unroll
      for (float& value : own.a[i]) value = exp_flushed<Config::kExactDecay>(value);
    }
    float x[kChannels];
    unpack_channels<Config::kThreads, typename Config::Element>(shared.piece(stage, i, 0), x);
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      maps[j] = i == 0 ? ScanMap{own.a[0][j], x[j]} : compose<false>(maps[j], {own.a[i][j], x[j]});
    }
  }
  own.simple = !begins && !ends;
  const bool small = !begins && are_small(maps);
  if (!small) map_tokens_exactly(params, place, shared, stage, kinds, own, maps);
  return small;
}

/// From the state before the thread's tokens: outputs and final states. Returns whether the states
/// are finite.
template <class Config, bool kExact>
__device__ bool store_tokens(const ScanForwardParams& params, const ScanPlace<Config>& place,
                             const ForwardShared<Config>& shared, int stage, const TokenKind* kinds,
                             int begin, const OwnTokens<Config>& own, float (&state)[kChannels]) {
  using Shared = ForwardShared<Config>;
  using Element = typename Config::Element;
  constexpr int kStride = Config::kThreads;
  const int tokens = place.tokens(params.sequences.T, begin);
  const int channels = params.D - place.channel();
  Element* to = place.template at<Element>(params.out, begin + place.row);
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int valid = i < tokens ? channels : 0;
    float x[kChannels];
    unpack_channels<kStride, Element>(shared.piece(stage, i, 0), x);
    if (kExact && own.replaced >> i & 1) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) state[j] = own.a[i][j];
    } else {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        state[j] = apply<kExact>({own.a[i][j], x[j]}, state[j]);
      }
    }
    float out[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) out[j] = state[j];
    if (params.gate.data != nullptr && !(kExact && (own.outside >> i & 1))) {
      unpack_channels<kStride, Element>(shared.piece(stage, i, Shared::kGate), x);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) out[j] *= x[j] * logistic<Config::kExact>(x[j]);
    }
    store_channels<Config::kAligned>(to, out, valid);
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

/// Of the column of this thread, before the token at `time`.
template <class Config>
__device__ void keep_state(const ScanForwardParams& params, const ScanPlace<Config>& place,
                           int time, float state) {
  const int channel = place.block_channel + threadIdx.x;
  if (Config::kOutputs || time % kStateTokens != 0) return;
  if (time >= params.sequences.T || channel >= params.D) return;
  params.states[(place.b * params.state_rows + time / kStateTokens) * params.D + channel] = state;
}

template <class Config>
__global__
__launch_bounds__(Config::kThreads, Config::kFewestBlocks) void gated_scan_forward_kernel(
    const __grid_constant__ ScanForwardParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(memory);
  const ScanPlace<Config> place(params);
  constexpr int kStages = Config::kStages;
  const int tile_step = params.ranks * Config::kTileTokens;
  const int first = place.rank * Config::kTileTokens;
  start_walk(shared.walk, params.ranks);
  follow_stream();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    load_tile(params, place, shared, stage, first + stage * tile_step);
    cutlass::arch::cp_async_fence();
  }
  shared.kinds.clear(params, place, 0, first);
  pass_empty_sequences(params, place, params.initial_state, params.final_state);
  __syncthreads();
  shared.kinds.mark(params, 0, first);
  join_walk(params.ranks);
  __syncthreads();
  float carry = 0.0f;
  const int steps = (params.sequences.T + tile_step - 1) / tile_step;
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int begin = first + step * tile_step;
    const int warp = threadIdx.x / 32;
    const TokenKind* kinds = shared.kinds.of(step);
    cutlass::arch::cp_async_wait<kStages - 1>();
    OwnTokens<Config> own;
    ScanMap maps[kChannels];
    const bool small = map_tokens(params, place, shared, stage, kinds, own, maps);
    scan_warp<Config::kLanes, false>(maps, small, &shared.walk.warp_maps[warp][place.column]);
    shared.kinds.clear(params, place, step + 1, begin + tile_step);
    __syncthreads();
    pass_states<false>(
        shared.walk, {params.ranks, place.rank, step}, carry, [&](int warp_of_state, float state) {
          keep_state(params, place, begin + warp_of_state * Config::kWarpTokens, state);
        });
    shared.kinds.mark(params, step + 1, begin + tile_step);
    __syncthreads();
    if constexpr (Config::kOutputs) {
      const auto pass = [&](auto exact) {
        float state[kChannels];
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
          state[j] = apply(maps[j], shared.walk.warp_states[warp][place.column + j]);
        }
        return store_tokens<Config, exact()>(params, place, shared, stage, kinds, begin, own,
                                             state);
      };
      if (!own.simple || !pass(std::false_type{})) pass(std::true_type{});
    }
    load_tile(params, place, shared, stage, begin + kStages * tile_step);
    cutlass::arch::cp_async_fence();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

template <class Config>
ScanForwardKernel forward_kernel() {
  constexpr std::size_t kBytes = sizeof(ForwardShared<Config>);
  return {.width = Config::kWidth,
          .tile_tokens = Config::kTileTokens,
          .blocks_per_sm = Config::blocks_per_sm(kBytes),
          .launch = [](const char* name, const ScanForwardParams& params, unsigned chains,
                       void* stream) {
            launch_kernel(name, gated_scan_forward_kernel<Config>,
                          {.blocks = chains * params.ranks,
                           .threads = Config::kThreads,
                           .cluster = static_cast<unsigned>(params.ranks),
                           .shared_bytes = kBytes},
                          static_cast<cudaStream_t>(stream), params);
          }};
}

}  // namespace tandem::cuda
