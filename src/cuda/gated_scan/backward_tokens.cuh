// What a thread does with its own tokens of a tile in the backward of gated_scan: the first pass,
// from what was loaded to maps, and the second one, from states to gradients.
#pragma once

#include <type_traits>

#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
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

  uint4 slots[Config::kStages][Config::kTokens * kOfToken][Config::kThreads];
  WalkShared<Config::kWarps, Config::kWidth> walk;    // of gradients, from the end
  ScanMap warp_maps[Config::kWarps][Config::kWidth];  // of states
  float warp_states[Config::kWarps][Config::kWidth];
  TileKinds<Config> kinds;

  __device__ const uint4* piece(int stage, int token, int of) const {
    return &slots[stage][token * kOfToken + of][threadIdx.x];
  }
  /// The thread's i-th piece of the stage whose contents are not read in the second pass.
  __device__ float4& spare(int stage, int i) {
    constexpr int kSpare = kOfToken - kDecay;
    static_assert(2 * kSpare >= kChannels / 2 && Config::kTokens >= 2);
    return reinterpret_cast<float4&>(
        slots[stage][i / kSpare * kOfToken + kDecay + i % kSpare][threadIdx.x]);
  }
};

/// Maps that the thread does not need for a while.
template <class Config>
__device__ void put_aside(BackwardShared<Config>& shared, int stage,
                          const ScanMap (&maps)[kChannels]) {
#pragma unroll
  for (int i = 0; i < kChannels / 2; ++i) {
    const ScanMap &x = maps[2 * i], &y = maps[2 * i + 1];
    shared.spare(stage, i) = {x.factor, x.sum, y.factor, y.sum};
  }
}

/// The state behind them, of the state before the warp's tokens.
template <class Config>
__device__ void take_states(BackwardShared<Config>& shared, int stage, const float* before,
                            float (&states)[kChannels]) {
#pragma unroll
  for (int i = 0; i < kChannels / 2; ++i) {
    const float4 maps = shared.spare(stage, i);
    states[2 * i] = apply({maps.x, maps.y}, before[2 * i]);
    states[2 * i + 1] = apply({maps.z, maps.w}, before[2 * i + 1]);
  }
}

/// The states that a sequence starts from, or a gradient by the states that it ends with.
template <class Config>
__device__ void load_given(const float* states, int sequence, const ScanParams& params,
                           const ScanPlace<Config>& place, float (&values)[kChannels]) {
  const float* row =
      states == nullptr ? nullptr : states + std::int64_t{sequence} * params.D + place.channel();
  load_state(row, values, params.D - place.channel());
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct TokenGradients {
  float a[Config::kTokens][kChannels];
  float by_state[Config::kTokens][kChannels];  // silu(gate) d_out
  float by_gate[Config::kTokens][kChannels];   // silu'(gate) d_out, to be multiplied by the state
  bool simple;                                 // tokens that neither begin nor end a sequence
};

template <class Config>
__device__ void differentiate_gates(const ScanBackwardParams& params,
                                    const BackwardShared<Config>& shared, int stage,
                                    const TokenKind* kinds, TokenGradients<Config>& own) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  constexpr int kStride = Config::kThreads;
  own.simple = true;
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
  }
  if (own.simple) return;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    if (kinds[i].first != TokenKind::kOutside) continue;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      own.a[i][j] = own.by_state[i][j] = own.by_gate[i][j] = 0.0f;
    }
  }
}

/// The maps of states of the thread's tokens; returns whether they are small.
template <class Config>
__device__ bool map_states(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                           const BackwardShared<Config>& shared, int stage, const TokenKind* kinds,
                           const TokenGradients<Config>& own, ScanMap (&maps)[kChannels]) {
  const auto compose_all = [&](auto exact) {
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      float x[kChannels];
      unpack_channels<Config::kThreads, typename Config::Element>(shared.piece(stage, i, 0), x);
      if (exact() && kinds[i].first != TokenKind::kInside) {
        float before[kChannels] = {};
        const bool begins = kinds[i].first >= 0;
        if (begins) load_given(params.initial_state, kinds[i].first, params, place, before);
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
          maps[j] = {0.0f, begins ? apply({own.a[i][j], x[j]}, before[j]) : 0.0f};
        }
      } else {
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
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
/// why __fmul_rn, and __fadd_rn behind it: an addition that is joined to the product in one of the
/// two forms only gives other bits there, and which form runs depends on neighbouring channels.
template <bool kExact = true>
__device__ inline float pass_back(float a, float by_state) {
  return kExact && a == 0.0f ? 0.0f : __fmul_rn(a, by_state);
}

/// The maps of gradients by states, from the last token to the first; returns whether they are
/// small.
template <class Config>
__device__ bool map_gradients(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                              const TokenKind* kinds, const TokenGradients<Config>& own,
                              ScanMap (&maps)[kChannels]) {
  const auto compose_all = [&](auto exact) {
#pragma unroll
    for (int i = Config::kTokens - 1; i >= 0; --i) {
      if (exact() && (kinds[i].last >= 0 || kinds[i].first == TokenKind::kOutside)) {
        float behind[kChannels] = {};
        if (kinds[i].last >= 0) {
          load_given(params.d_final_state, kinds[i].last, params, place, behind);
        }
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
          maps[j] = {0.0f, pass_back(own.a[i][j], __fadd_rn(own.by_state[i][j], behind[j]))};
        }
      } else {
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
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

/// Of all tokens of the thread, `values(i)` of the i-th.
template <class Config, class Stored>
__device__ void store_gradient(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                               const TokenTensor& tensor, int begin, int i,
                               const float (&values)[kChannels]) {
  if (tensor.data == nullptr) return;
  const int valid = i < place.tokens(params.sequences.T, begin) ? params.D - place.channel() : 0;
  Stored* to = place.template at<Stored>(tensor, begin + place.row) + i * tensor.time_stride;
  store_channels<Config::kAligned>(to, values, valid);
}

/// From the state before the thread's tokens: the states before each, and d_gate. Returns whether
/// the states are finite.
template <class Config, bool kExact>
__device__ bool store_gate_gradients(const ScanBackwardParams& params,
                                     const ScanPlace<Config>& place,
                                     const BackwardShared<Config>& shared, int stage,
                                     const TokenKind* kinds, int begin,
                                     const TokenGradients<Config>& own, float (&state)[kChannels],
                                     float (&before)[Config::kTokens][kChannels]) {
  using Element = typename Config::Element;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float x[kChannels];
    unpack_channels<Config::kThreads, Element>(shared.piece(stage, i, 0), x);
    const bool outside = kExact && kinds[i].first == TokenKind::kOutside;
    if (kExact && kinds[i].first >= 0) {
      load_given(params.initial_state, kinds[i].first, params, place, state);
    }
    float d_gate[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (outside) state[j] = x[j] = 0.0f;
      before[i][j] = state[j];
      state[j] = apply<kExact>({own.a[i][j], x[j]}, state[j]);
      d_gate[j] = own.by_gate[i][j] * state[j];
    }
    store_gradient<Config, Element>(params, place, params.d_gate, begin, i, d_gate);
  }
  return are_finite(state);
}

/// From the gradient by the state behind the thread's tokens: all other gradients. Returns whether
/// they are finite.
template <class Config, bool kExact>
__device__ bool store_gradients(const ScanBackwardParams& params, const ScanPlace<Config>& place,
                                const TokenKind* kinds, int begin,
                                const TokenGradients<Config>& own,
                                const float (&before)[Config::kTokens][kChannels],
                                float (&behind)[kChannels]) {
  using Element = typename Config::Element;
#pragma unroll
  for (int i = Config::kTokens - 1; i >= 0; --i) {
    const bool outside = kExact && kinds[i].first == TokenKind::kOutside;
    if (kExact && kinds[i].last >= 0) {
      load_given(params.d_final_state, kinds[i].last, params, place, behind);
    }
    float ds[kChannels], d_decay[kChannels];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const float a = own.a[i][j];
      ds[j] = __fadd_rn(own.by_state[i][j], outside ? 0.0f : behind[j]);
      behind[j] = pass_back<kExact>(a, ds[j]);
      const float by_log = pass_back<kExact>(a, ds[j] * before[i][j]);
      d_decay[j] = params.log_decay ? by_log : ds[j] * before[i][j];
    }
    store_gradient<Config, Element>(params, place, params.dx, begin, i, ds);
    store_gradient<Config, typename Config::Decay>(params, place, params.d_decay, begin, i,
                                                   d_decay);
    if (kExact && kinds[i].first >= 0 && params.d_initial_state != nullptr) {
      store_state(
          params.d_initial_state + std::int64_t{kinds[i].first} * params.D + place.channel(),
          behind, params.D - place.channel());
    }
  }
  return are_finite(behind);
}

}  // namespace tandem::cuda
