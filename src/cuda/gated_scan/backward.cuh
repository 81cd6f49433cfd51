// gated_scan_backward_kernel
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
struct BackwardShared {
  // Of a token, in this order: x, decay, gate, d_out.
  static constexpr int kDecay = Config::kElementPieces;
  static constexpr int kGate = kDecay + Config::kDecayPieces;
  static constexpr int kOut = kGate + Config::kElementPieces;
  static constexpr int kPieces = kOut + Config::kElementPieces;

  uint4 slots[Config::kStages][Config::kTokens * kPieces][Config::kThreads];
  WalkShared<Config::kWarps, Config::kWidth> walk;  // of gradients, from the end
  ScanMap warp_maps[Config::kWarps][Config::kWidth];  // of states
  float warp_states[Config::kWarps][Config::kWidth];
  TileKinds<Config> kinds;

  __device__ const uint4* piece(int stage, int token, int of) const {
    return &slots[stage][token * kPieces + of][threadIdx.x];
  }
};

template <class Config>
__device__ bool holds(const ScanBackwardParams& params, int time) {
  return time >= 0 && time < params.sequences.T;
}

/// Starts loading the thread's part of the tile that begins at `begin`.
template <class Config>
__device__ void load_tile(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                          BackwardShared<Config>& shared, int stage, int begin) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  using Decay = typename Config::Decay;
  constexpr bool kAligned = Config::kAligned;
  constexpr int kStride = Config::kThreads;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int time = begin + place.row + i;
    const int valid = holds<Config>(params, time) ? params.D - place.channel() : 0;
    uint4* piece = &shared.slots[stage][i * Shared::kPieces][threadIdx.x];
    if (params.states != nullptr) {
      copy_channels<kAligned, kStride>(piece, place.template at<const Element>(params.x, time),
                                       valid);
    }
    copy_channels<kAligned, kStride>(piece + Shared::kDecay * kStride,
                                     place.template at<const Decay>(params.decay, time), valid);
    if (params.gate.data != nullptr) {
      copy_channels<kAligned, kStride>(piece + Shared::kGate * kStride,
                                       place.template at<const Element>(params.gate, time), valid);
    }
    copy_channels<kAligned, kStride>(piece + Shared::kOut * kStride,
                                     place.template at<const Element>(params.d_out, time), valid);
  }
}

/// The states that a sequence starts from, or a gradient by the states that it ends with.
template <class Config>
__device__ void load_given(const float* states, int sequence, const ScanParams& params,
                           const ScanPlace<Config>& place, float (&values)[kChannels]) {
  const float* row = states == nullptr
                         ? nullptr
                         : states + std::int64_t{sequence} * params.D + place.channel();
  load_state(row, values, params.D - place.channel());
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct TokenGradients {
  float a[Config::kTokens][kChannels];
  float by_state[Config::kTokens][kChannels];  // silu(gate) d_out
  float by_gate[Config::kTokens][kChannels];   // silu'(gate) d_out, to be multiplied by the state
};

template <class Config>
__device__ void differentiate_gates(const ScanBackwardParams& params,
                                    const BackwardShared<Config>& shared, int stage,
                                    const TokenKind* kinds, int row,
                                    TokenGradients<Config>& own) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  constexpr int kStride = Config::kThreads;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    unpack_channels<kStride, typename Config::Decay>(shared.piece(stage, i, Shared::kDecay),
                                                     own.a[i]);
    unpack_channels<kStride, Element>(shared.piece(stage, i, Shared::kOut), own.by_state[i]);
    if (params.log_decay) {
#pragma unroll
      for (float& value : own.a[i]) value = exp_flushed<Config::kExactDecay>(value);
    }
    if (params.gate.data != nullptr) {
      float gate[kChannels];
      unpack_channels<kStride, Element>(shared.piece(stage, i, Shared::kGate), gate);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        const float open = logistic<Config::kExact>(gate[j]);
        const float d_out = own.by_state[i][j];
        own.by_state[i][j] = d_out * (gate[j] * open);
        own.by_gate[i][j] = d_out * (open * fmaf(gate[j], 1.0f - open, 1.0f));
      }
    }
    if (kinds[row + i].first == TokenKind::kOutside) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        own.a[i][j] = own.by_state[i][j] = own.by_gate[i][j] = 0.0f;
      }
    }
  }
}

/// The maps of the thread's tokens, of states and of gradients by states.
template <class Config>
__device__ void map_states(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                           const BackwardShared<Config>& shared, int stage, const TokenKind* kinds,
                           const TokenGradients<Config>& own, ScanMap (&maps)[kChannels]) {
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float x[kChannels];
    unpack_channels<Config::kThreads, typename Config::Element>(shared.piece(stage, i, 0), x);
    const int first = kinds[place.row + i].first;
    if (first == TokenKind::kInside) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) maps[j] = compose(maps[j], {own.a[i][j], x[j]});
    } else {
      float before[kChannels] = {};
      if (first >= 0) load_given(params.initial_state, first, params, place, before);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        maps[j] = {0.0f, first >= 0 ? apply({own.a[i][j], x[j]}, before[j]) : 0.0f};
      }
    }
  }
}

/// The gradient by the state before a token, from that by the state behind it.
__device__ inline float pass_back(float a, float by_state) { return a == 0.0f ? 0.0f : a * by_state; }

template <class Config>
__device__ void map_gradients(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                              const TokenKind* kinds, const TokenGradients<Config>& own,
                              ScanMap (&maps)[kChannels]) {
#pragma unroll
  for (int i = Config::kTokens - 1; i >= 0; --i) {
    const TokenKind kind = kinds[place.row + i];
    if (kind.last < 0 && kind.first != TokenKind::kOutside) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        maps[j] = compose(maps[j], {own.a[i][j], pass_back(own.a[i][j], own.by_state[i][j])});
      }
    } else {
      float behind[kChannels] = {};
      if (kind.last >= 0) load_given(params.d_final_state, kind.last, params, place, behind);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        maps[j] = {0.0f, pass_back(own.a[i][j], own.by_state[i][j] + behind[j])};
      }
    }
  }
}

template <class Config, class Stored>
__device__ void store_gradient(const ScanPlace<Config>& place, const TokenTensor& to, int time,
                               const float (&values)[kChannels], int valid) {
  if (to.data == nullptr) return;
  store_channels<Config::kAligned>(place.template at<Stored>(to, time), values, valid);
}

/// From the state before the thread's tokens: the states before each, and d_gate.
template <class Config>
__device__ void store_gate_gradients(const ScanBackwardParams& params,
                                     const ScanPlace<Config>& place,
                                     const BackwardShared<Config>& shared, int stage,
                                     const TokenKind* kinds, int begin,
                                     const TokenGradients<Config>& own, float (&state)[kChannels],
                                     float (&before)[Config::kTokens][kChannels]) {
  using Element = typename Config::Element;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    const int time = begin + place.row + i;
    const int valid = holds<Config>(params, time) ? params.D - place.channel() : 0;
    const int first = kinds[place.row + i].first;
    float x[kChannels];
    unpack_channels<Config::kThreads, Element>(shared.piece(stage, i, 0), x);
    if (first >= 0) load_given(params.initial_state, first, params, place, state);
    float d_gate[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (first == TokenKind::kOutside) state[j] = x[j] = 0.0f;
      before[i][j] = state[j];
      state[j] = apply({own.a[i][j], x[j]}, state[j]);
      d_gate[j] = own.by_gate[i][j] * state[j];
    }
    store_gradient<Config, Element>(place, params.d_gate, time, d_gate, valid);
  }
}

/// From the gradient by the state behind the thread's tokens: all other gradients.
template <class Config>
__device__ void store_gradients(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                                const TokenKind* kinds, int begin,
                                const TokenGradients<Config>& own,
                                const float (&before)[Config::kTokens][kChannels],
                                float (&behind)[kChannels]) {
#pragma unroll
  for (int i = Config::kTokens - 1; i >= 0; --i) {
    const int time = begin + place.row + i;
    const int valid = holds<Config>(params, time) ? params.D - place.channel() : 0;
    const TokenKind kind = kinds[place.row + i];
    if (kind.last >= 0) load_given(params.d_final_state, kind.last, params, place, behind);
    float ds[kChannels], d_decay[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (kind.first == TokenKind::kOutside) behind[j] = 0.0f;
      ds[j] = own.by_state[i][j] + behind[j];
      behind[j] = pass_back(own.a[i][j], ds[j]);
      const float by_log = own.a[i][j] == 0.0f ? 0.0f : behind[j] * before[i][j];
      d_decay[j] = params.log_decay ? by_log : ds[j] * before[i][j];
    }
    store_gradient<Config, typename Config::Element>(place, params.dx, time, ds, valid);
    store_gradient<Config, typename Config::Decay>(place, params.d_decay, time, d_decay, valid);
    if (kind.first >= 0 && params.d_initial_state != nullptr) {
      store_state(params.d_initial_state + std::int64_t{kind.first} * params.D + place.channel(),
                  behind, valid);
    }
  }
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
  if (channel >= params.D || !holds<Config>(params, begin)) return 0.0f;
  return __ldcg(&params.states[(place.b * params.state_rows + begin / kStateTokens) * params.D +
                               channel]);
}

template <class Config>
__global__ __launch_bounds__(Config::kThreads, Config::kFewestBlocks) void
gated_scan_backward_kernel(const __grid_constant__ ScanBackwardParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(memory);
  const ScanPlace<Config> place(params);
  constexpr int kStages = Config::kStages;
  const int tiles = (params.sequences.T + Config::kTileTokens - 1) / Config::kTileTokens;
  const int first = (tiles - 1 - place.rank) * Config::kTileTokens;
  const int tile_step = params.ranks * Config::kTileTokens;
  if (params.ranks > 1) __cluster_barrier_arrive();
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
  __syncthreads();
  float carry = 0.0f;
  const int steps = (tiles + params.ranks - 1) / params.ranks;
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int begin = first - step * tile_step;
    const int warp = threadIdx.x / 32;
    const TokenKind* kinds = shared.kinds.of(step);
    cutlass::arch::cp_async_wait<kStages - 1>();
    TokenGradients<Config> own;
    differentiate_gates(params, shared, stage, kinds, place.row, own);
    ScanMap state_maps[kChannels];
    if (params.states != nullptr) {
      map_states(params, place, shared, stage, kinds, own, state_maps);
      scan_warp<Config::kLanes, false>(state_maps, &shared.warp_maps[warp][place.column]);
    }
    ScanMap gradient_maps[kChannels];
    map_gradients(params, place, kinds, own, gradient_maps);
    scan_warp<Config::kLanes, true>(gradient_maps, &shared.walk.warp_maps[warp][place.column]);
    shared.kinds.clear(params, place, step + 1, begin - tile_step);
    __syncthreads();
    if (params.states != nullptr) pass_tile_states(shared, tile_state);
    tile_state = load_tile_state(params, place, begin - tile_step);
    pass_states<true>(shared.walk, {params.ranks, place.rank, step}, carry, [](int, float) {});
    shared.kinds.mark(params, step + 1, begin - tile_step);
    __syncthreads();
    float line[kChannels];
    float before[Config::kTokens][kChannels] = {};
    if (params.states != nullptr) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        line[j] = apply(state_maps[j], shared.warp_states[warp][place.column + j]);
      }
      store_gate_gradients(params, place, shared, stage, kinds, begin, own, line, before);
    }
    load_tile(params, place, shared, stage, begin - kStages * tile_step);
    cutlass::arch::cp_async_fence();
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      line[j] = apply(gradient_maps[j], shared.walk.warp_states[warp][place.column + j]);
    }
    store_gradients(params, place, kinds, begin, own, before, line);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  if (params.ranks > 1 && steps == 0) __cluster_barrier_wait();
}

template <class Config>
ScanBackwardKernel backward_kernel() {
  constexpr std::size_t kBytes = sizeof(BackwardShared<Config>);
  return {.width = Config::kWidth,
          .tile_tokens = Config::kTileTokens,
          .blocks_per_sm = Config::blocks_per_sm(kBytes),
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
