// gated_scan_forward_kernel: s_t = a_t s_{t-1} + x_t, out_t = silu(gate_t) s_t.
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
  static constexpr int kPieces =
      Config::kTokens * (2 * Config::kElementPieces + Config::kDecayPieces);

  uint4 slots[Config::kStages][kPieces][Config::kThreads];
  WalkShared<Config::kWarps, Config::kWidth> walk;
  TileKinds<Config> kinds;
};

/// Starts loading the thread's part of the tile that begins at `begin`.
template <class Config, class Shared>
__device__ void load_tile(const ScanForwardParams& params, const ScanPlace<Config>& place,
                          Shared& shared, int stage, int begin) {
  using Element = typename Config::Element;
  using Decay = typename Config::Decay;
  constexpr bool kAligned = Config::kAligned;
  constexpr int kStride = Config::kThreads;
  uint4* piece = &shared.slots[stage][0][threadIdx.x];
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int time = begin + place.row + i;
    const int valid = time < params.sequences.T ? params.D - place.channel() : 0;
    copy_channels<kAligned, kStride>(piece, place.template at<const Element>(params.x, time),
                                     valid);
    piece += Config::kElementPieces * kStride;
    copy_channels<kAligned, kStride>(piece, place.template at<const Decay>(params.decay, time),
                                     valid);
    piece += Config::kDecayPieces * kStride;
    if (params.gate.data != nullptr) {
      copy_channels<kAligned, kStride>(piece, place.template at<const Element>(params.gate, time),
                                       valid);
    }
    piece += Config::kElementPieces * kStride;
  }
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct OwnTokens {
  float a[Config::kTokens][kChannels];  // the decay; where `replaced`, the state itself
  unsigned replaced = 0;                // bit i: the state at token i does not go by the one before
  unsigned outside = 0;
};

/// The maps of the thread's tokens.
template <class Config, class Shared>
__device__ void map_tokens(const ScanForwardParams& params, const ScanPlace<Config>& place,
                           const Shared& shared, int stage, const TokenKind* kinds,
                           OwnTokens<Config>& own, ScanMap (&maps)[kChannels]) {
  constexpr int kStride = Config::kThreads;
  const uint4* piece = &shared.slots[stage][0][threadIdx.x];
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float x[kChannels];
    float(&a)[kChannels] = own.a[i];
    unpack_channels<kStride, typename Config::Element>(piece, x);
    unpack_channels<kStride, typename Config::Decay>(piece + Config::kElementPieces * kStride, a);
    piece += (2 * Config::kElementPieces + Config::kDecayPieces) * kStride;
    if (params.log_decay) {
#pragma unroll
      for (float& value : a) value = exp_flushed<Config::kExactDecay>(value);
    }
    const int first = kinds[place.row + i].first;
    if (first == TokenKind::kInside) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) maps[j] = compose(maps[j], {a[j], x[j]});
    } else {
      // why now: final_state may be the same memory, and is written in the second pass.
      float before[kChannels];
      const bool given = first >= 0 && params.initial_state != nullptr;
      load_state(given ? params.initial_state + std::int64_t{first} * params.D + place.channel()
                       : nullptr,
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

/// From the state before the thread's tokens: outputs and final states.
template <class Config, class Shared>
__device__ void store_tokens(const ScanForwardParams& params, const ScanPlace<Config>& place,
                             const Shared& shared, int stage, const TokenKind* kinds, int begin,
                             const OwnTokens<Config>& own, float (&state)[kChannels]) {
  using Element = typename Config::Element;
  constexpr int kStride = Config::kThreads;
  const uint4* piece = &shared.slots[stage][0][threadIdx.x];
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int time = begin + place.row + i;
    const int valid = time < params.sequences.T ? params.D - place.channel() : 0;
    float x[kChannels];
    unpack_channels<kStride, Element>(piece, x);
    if (own.replaced >> i & 1) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) state[j] = own.a[i][j];
    } else {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) state[j] = apply({own.a[i][j], x[j]}, state[j]);
    }
    float out[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) out[j] = state[j];
    if (params.gate.data != nullptr && !(own.outside >> i & 1)) {
      unpack_channels<kStride, Element>(
          piece + (Config::kElementPieces + Config::kDecayPieces) * kStride, x);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) out[j] *= x[j] * logistic<Config::kExact>(x[j]);
    }
    piece += (2 * Config::kElementPieces + Config::kDecayPieces) * kStride;
    store_channels<Config::kAligned>(place.template at<Element>(params.out, time), out, valid);
    const int last = kinds[place.row + i].last;
    if (last >= 0 && params.final_state != nullptr) {
      store_state(params.final_state + std::int64_t{last} * params.D + place.channel(), state,
                  valid);
    }
  }
}

/// Of the column of this thread, before the token at `time`.
template <class Config>
__device__ void keep_state(const ScanForwardParams& params, const ScanPlace<Config>& place,
                           int time, float state) {
  const int channel = place.block_channel + threadIdx.x;
  if (params.states == nullptr || time % kStateTokens != 0) return;
  if (time >= params.sequences.T || channel >= params.D) return;
  params.states[(place.b * params.state_rows + time / kStateTokens) * params.D + channel] = state;
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kFewestBlocks) void gated_scan_forward_kernel(
    const __grid_constant__ ScanForwardParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<Config>*>(memory);
  const ScanPlace<Config> place(params);
  constexpr int kStages = Config::kStages;
  const int tile_step = params.ranks * Config::kTileTokens;
  const int first = place.rank * Config::kTileTokens;
  if (params.ranks > 1) __cluster_barrier_arrive();
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
    map_tokens(params, place, shared, stage, kinds, own, maps);
    scan_warp<Config::kLanes, false>(maps, &shared.walk.warp_maps[warp][place.column]);
    shared.kinds.clear(params, place, step + 1, begin + tile_step);
    __syncthreads();
    pass_states<false>(shared.walk, {params.ranks, place.rank, step}, carry,
                       [&](int warp_of_state, float state) {
                         keep_state(params, place, begin + warp_of_state * Config::kWarpTokens,
                                    state);
                       });
    shared.kinds.mark(params, step + 1, begin + tile_step);
    __syncthreads();
    if (params.out.data != nullptr) {
      float state[kChannels];
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        state[j] = apply(maps[j], shared.walk.warp_states[warp][place.column + j]);
      }
      store_tokens(params, place, shared, stage, kinds, begin, own, state);
    }
    load_tile(params, place, shared, stage, begin + kStages * tile_step);
    cutlass::arch::cp_async_fence();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  // why: a CTA's shared memory must be there until all have written to it.
  if (params.ranks > 1 && steps == 0) __cluster_barrier_wait();
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
