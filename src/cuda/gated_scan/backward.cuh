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
  static constexpr int kOfToken = kOut + Config::kElementPieces;

  typename Config::Piece slots[Config::kStages][Config::kTokens * kOfToken][Config::kThreads];
  WalkShared<Config::kWarps, Config::kWidth> walk;  // of gradients, from the end
  ScanMap warp_maps[Config::kWarps][Config::kWidth];  // of states
  float warp_states[Config::kWarps][Config::kWidth];
  TileKinds<Config> kinds;

  __device__ const typename Config::Piece* piece(int stage, int token, int of) const {
    return &slots[stage][token * kOfToken + of][threadIdx.x];
  }
};

template <class Config>
__device__ void load_tile(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                          BackwardShared<Config>& shared, int stage, int begin) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  constexpr int kOfToken = Shared::kOfToken;
  const auto to = [&](int of) { return &shared.slots[stage][of][threadIdx.x]; };
  if (params.states != nullptr) {
    load_tokens<Config, Element, kOfToken>(params, place, params.x, to(0), begin);
  }
  load_tokens<Config, typename Config::Decay, kOfToken>(params, place, params.decay,
                                                        to(Shared::kDecay), begin);
  if (params.gate.data != nullptr) {
    load_tokens<Config, Element, kOfToken>(params, place, params.gate, to(Shared::kGate), begin);
  }
  load_tokens<Config, Element, kOfToken>(params, place, params.d_out, to(Shared::kOut), begin);
}

/// The states that a sequence starts from, or a gradient by the states that it ends with.
template <class Config>
__device__ void load_given(const float* states, int sequence, const ScanParams& params,
                           const ScanPlace<Config>& place, float (&values)[Config::kChannels]) {
  const float* row = states == nullptr
                         ? nullptr
                         : states + std::int64_t{sequence} * params.D + place.channel();
  load_state(row, values, params.D - place.channel());
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct TokenGradients {
  float a[Config::kTokens][Config::kChannels];
  float by_state[Config::kTokens][Config::kChannels];  // silu(gate) d_out
  float by_gate[Config::kTokens][Config::kChannels];   // silu'(gate) d_out, to be multiplied by the state
  bool simple;  // tokens that exist, and neither begin nor end a sequence
};

template <class Config>
__device__ void differentiate_gates(const ScanBackwardParams& params,
                                    const BackwardShared<Config>& shared, int stage,
                                    const TokenKind* kinds, bool complete,
                                    TokenGradients<Config>& own) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  constexpr int kStride = Config::kThreads;
  own.simple = complete;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    own.simple &= kinds[i].first == TokenKind::kInside && kinds[i].last < 0;
    unpack_channels<kStride, typename Config::Decay>(shared.piece(stage, i, Shared::kDecay),
                                                     own.a[i]);
    unpack_channels<kStride, Element>(shared.piece(stage, i, Shared::kOut), own.by_state[i]);
    if (params.log_decay) {
#pragma unroll
      for (float& value : own.a[i]) value = exp_flushed<Config::kExactDecay>(value);
    }
    if (params.gate.data != nullptr) {
      float gate[Config::kChannels];
      unpack_channels<kStride, Element>(shared.piece(stage, i, Shared::kGate), gate);
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        const float open = logistic<Config::kExact>(gate[j]);
        const float d_out = own.by_state[i][j];
        own.by_state[i][j] = d_out * (gate[j] * open);
        own.by_gate[i][j] = d_out * (open * fmaf(gate[j], 1.0f - open, 1.0f));
      }
    }
  }
  if (own.simple) return;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    if (kinds[i].first != TokenKind::kOutside) continue;
#pragma unroll
    for (int j = 0; j < Config::kChannels; ++j) {
      own.a[i][j] = own.by_state[i][j] = own.by_gate[i][j] = 0.0f;
    }
  }
}

/// The maps of states of the thread's tokens; returns whether they are small.
template <class Config>
__device__ bool map_states(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                           const BackwardShared<Config>& shared, int stage, const TokenKind* kinds,
                           const TokenGradients<Config>& own, ScanMap (&maps)[Config::kChannels]) {
  const auto compose_all = [&](auto exact) {
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      float x[Config::kChannels];
      unpack_channels<Config::kThreads, typename Config::Element>(shared.piece(stage, i, 0), x);
      if (exact() && kinds[i].first != TokenKind::kInside) {
        float before[Config::kChannels] = {};
        const bool begins = kinds[i].first >= 0;
        if (begins) load_given(params.initial_state, kinds[i].first, params, place, before);
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          maps[j] = {0.0f, begins ? apply({own.a[i][j], x[j]}, before[j]) : 0.0f};
        }
      } else {
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          const ScanMap map{own.a[i][j], x[j]};
          maps[j] = i == 0 ? map : compose<exact()>(maps[j], map);
        }
      }
    }
  };
  if (own.simple) {
    compose_all(std::false_type{});
    if (are_small(maps)) return true;
  }
  compose_all(std::true_type{});
  return false;
}

/// The gradient by the state before a token, from that by the state behind it.
template <bool kExact = true>
__device__ inline float pass_back(float a, float by_state) {
  return kExact && a == 0.0f ? 0.0f : a * by_state;
}

/// The maps of gradients by states, from the last token to the first; returns whether they are
/// small.
template <class Config>
__device__ bool map_gradients(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                              const TokenKind* kinds, const TokenGradients<Config>& own,
                              ScanMap (&maps)[Config::kChannels]) {
  const auto compose_all = [&](auto exact) {
#pragma unroll
    for (int i = Config::kTokens - 1; i >= 0; --i) {
      if (exact() && (kinds[i].last >= 0 || kinds[i].first == TokenKind::kOutside)) {
        float behind[Config::kChannels] = {};
        if (kinds[i].last >= 0) {
          load_given(params.d_final_state, kinds[i].last, params, place, behind);
        }
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          maps[j] = {0.0f, pass_back(own.a[i][j], own.by_state[i][j] + behind[j])};
        }
      } else {
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          const float a = own.a[i][j];
          const ScanMap map{a, pass_back<exact()>(a, own.by_state[i][j])};
          maps[j] = i == Config::kTokens - 1 ? map : compose<exact()>(maps[j], map);
        }
      }
    }
  };
  if (own.simple) {
    compose_all(std::false_type{});
    if (are_small(maps)) return true;
  }
  compose_all(std::true_type{});
  return false;
}

/// The thread's part of a gradient, if it is wanted.
template <class Config, class StoredT, bool kExact>
struct GradientRows {
  StoredT* first;  // of the thread's tokens; null: not wanted
  std::int64_t stride;
  int tokens;
  int channels;

  __device__ GradientRows(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                          const TokenTensor& tensor, int begin)
      : first(tensor.data == nullptr ? nullptr
                                     : place.template at<StoredT>(tensor, begin + place.row)),
        stride(tensor.time_stride),
        tokens(place.tokens(params.sequences.T, begin)),
        channels(Config::kAligned ? Config::kChannels : params.D - place.channel()) {}

  /// kExact: the i-th token may not exist.
  __device__ void store(int i, const float (&values)[Config::kChannels]) const {
    if (first == nullptr || (kExact && i >= tokens)) return;
    store_channels<Config::kAligned, typename Config::Piece>(first + i * stride, values, channels);
  }
};

/// From the state before the thread's tokens: the states before each, and d_gate. Returns whether
/// the states are finite.
template <class Config, bool kExact>
__device__ bool store_gate_gradients(const ScanBackwardParams& params,
                                     const ScanPlace<Config>& place,
                                     const BackwardShared<Config>& shared, int stage,
                                     const TokenKind* kinds, int begin,
                                     const TokenGradients<Config>& own, float (&state)[Config::kChannels],
                                     float (&before)[Config::kTokens][Config::kChannels]) {
  using Element = typename Config::Element;
  const GradientRows<Config, Element, kExact> rows(params, place, params.d_gate, begin);
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float x[Config::kChannels];
    unpack_channels<Config::kThreads, Element>(shared.piece(stage, i, 0), x);
    const bool outside = kExact && kinds[i].first == TokenKind::kOutside;
    if (kExact && kinds[i].first >= 0) {
      load_given(params.initial_state, kinds[i].first, params, place, state);
    }
    float d_gate[Config::kChannels];
#pragma unroll
    for (int j = 0; j < Config::kChannels; ++j) {
      if (outside) state[j] = x[j] = 0.0f;
      before[i][j] = state[j];
      state[j] = apply<kExact>({own.a[i][j], x[j]}, state[j]);
      d_gate[j] = own.by_gate[i][j] * state[j];
    }
    rows.store(i, d_gate);
  }
  return are_finite(state);
}

/// From the gradient by the state behind the thread's tokens: all other gradients. Returns whether
/// they are finite.
template <class Config, bool kExact>
__device__ bool store_gradients(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                                const TokenKind* kinds, int begin,
                                const TokenGradients<Config>& own,
                                const float (&before)[Config::kTokens][Config::kChannels],
                                float (&behind)[Config::kChannels]) {
  const GradientRows<Config, typename Config::Element, kExact> dx_rows(params, place, params.dx,
                                                                       begin);
  const GradientRows<Config, typename Config::Decay, kExact> decay_rows(params, place,
                                                                        params.d_decay, begin);
#pragma unroll
  for (int i = Config::kTokens - 1; i >= 0; --i) {
    const bool outside = kExact && kinds[i].first == TokenKind::kOutside;
    if (kExact && kinds[i].last >= 0) {
      load_given(params.d_final_state, kinds[i].last, params, place, behind);
    }
    float ds[Config::kChannels], d_decay[Config::kChannels];
#pragma unroll
    for (int j = 0; j < Config::kChannels; ++j) {
      ds[j] = own.by_state[i][j] + (outside ? 0.0f : behind[j]);
      behind[j] = pass_back<kExact>(own.a[i][j], ds[j]);
      d_decay[j] = ds[j] * before[i][j];
    }
    dx_rows.store(i, ds);
    if (params.log_decay) {
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        d_decay[j] = pass_back<kExact>(own.a[i][j], d_decay[j]);
      }
    }
    decay_rows.store(i, d_decay);
    if (kExact && kinds[i].first >= 0 && params.d_initial_state != nullptr) {
      store_state(
          params.d_initial_state + std::int64_t{kinds[i].first} * params.D + place.channel(),
          behind, params.D - place.channel());
    }
  }
  return are_finite(behind);
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
  const bool has_channels = place.channel() < params.D;
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
    const TokenKind* kinds = shared.kinds.of(step) + place.row;
    cutlass::arch::cp_async_wait<kStages - 1>();
    TokenGradients<Config> own;
    const bool complete = place.tokens(params.sequences.T, begin) >= Config::kTokens;
    differentiate_gates(params, shared, stage, kinds, complete, own);
    ScanMap state_maps[Config::kChannels];
    if (has_states) {
      const bool small = map_states(params, place, shared, stage, kinds, own, state_maps);
      scan_warp<Config::kLanes, false>(state_maps, small, &shared.warp_maps[warp][place.column]);
    }
    ScanMap gradient_maps[Config::kChannels];
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
    float before[Config::kTokens][Config::kChannels] = {};
    if (has_states && has_channels) {
      const auto pass = [&](auto exact) {
        float state[Config::kChannels];
#pragma unroll
        for (int j = 0; j < Config::kChannels; ++j) {
          state[j] = apply(state_maps[j], shared.warp_states[warp][place.column + j]);
        }
        return store_gate_gradients<Config, exact()>(params, place, shared, stage, kinds, begin,
                                                     own, state, before);
      };
      if (!own.simple || !pass(std::false_type{})) pass(std::true_type{});
    }
    load_tile(params, place, shared, stage, begin - kStages * tile_step);
    cutlass::arch::cp_async_fence();
    const auto pass = [&](auto exact) {
      float behind[Config::kChannels];
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        behind[j] = apply(gradient_maps[j], shared.walk.warp_states[warp][place.column + j]);
      }
      return store_gradients<Config, exact()>(params, place, kinds, begin, own, before, behind);
    };
    if (has_channels && (!own.simple || !pass(std::false_type{}))) pass(std::true_type{});
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
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
