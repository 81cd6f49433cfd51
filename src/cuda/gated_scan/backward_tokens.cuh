// What a thread does with its own tokens of a tile in the backward of gated_scan: the first pass,
// from what was loaded to maps, and the second one, from states to gradients.
#pragma once

#include <type_traits>

#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
#include "cuda/gated_scan/row_slots.cuh"
#include "cuda/scan/channels.cuh"
#include "cuda/scan/functions.cuh"
#include "cuda/scan/map.cuh"
#include "cuda/scan/tile_tokens.cuh"
#include "cuda/scan/walk.cuh"

namespace tandem::cuda::gated_scan {

template <class Config>
struct BackwardShared {
  // Pieces of a token, in this order: x, decay, gate, d_out.
  static constexpr int kDecay = Config::kElementPieces;
  static constexpr int kGate = kDecay + Config::kDecayPieces;
  static constexpr int kOut = kGate + Config::kElementPieces;
  static constexpr int kOfToken = kOut + Config::kElementPieces;
  // Results that leave as rows, in this order: dx, d_decay, d_gate.
  static constexpr int kDDecay = 1;
  static constexpr int kDGate = 2;

  std::conditional_t<Config::kRows, RowSlots<Config, 4, 3>, PieceSlots<Config, kOfToken>> slots;
  WalkShared<Config::kWarps, Config::kWidth> walk;    // of gradients, from the end
  ScanMap warp_maps[Config::kWarps][Config::kWidth];  // of states
  float warp_states[Config::kWarps][Config::kWidth];
  TileKinds<Config> kinds;

  /// Unpacks a thread's channels of a token.
  template <class Stored>
  __device__ void unpack(const Place<Config>& place, int stage, int token, int of,
                         float (&values)[Config::kChannels]) const {
    unpack_channels<Config::kThreads, Stored>(slots.piece(place, stage, token, of), values);
  }
  /// Returns the i-th piece of the thread in a stage that the second pass does not read.
  __device__ float4& spare(int stage, int i) {
    constexpr int kSpare = kOfToken - kDecay;
    static_assert(2 * kSpare >= Config::kChannels / 2 && Config::kTokens >= 2);
    return reinterpret_cast<float4&>(
        slots.slots[stage][i / kSpare * kOfToken + kDecay + i % kSpare][threadIdx.x]);
  }
};

/// Puts maps aside that the thread does not need for a while.
template <class Config>
__device__ void put_aside(BackwardShared<Config>& shared, int stage,
                          const ScanMap (&maps)[Config::kChannels]) {
#pragma unroll
  for (int i = 0; i < Config::kChannels / 2; ++i) {
    const ScanMap &x = maps[2 * i], &y = maps[2 * i + 1];
    shared.spare(stage, i) = {x.factor, x.sum, y.factor, y.sum};
  }
}

/// Takes the maps back that put_aside put aside.
template <class Config>
__device__ void take_again(BackwardShared<Config>& shared, int stage,
                           ScanMap (&maps)[Config::kChannels]) {
#pragma unroll
  for (int i = 0; i < Config::kChannels / 2; ++i) {
    const float4 pair = shared.spare(stage, i);
    maps[2 * i] = {pair.x, pair.y};
    maps[2 * i + 1] = {pair.z, pair.w};
  }
}

/// Loads the states that a sequence starts from, or the gradients by those that it ends with.
template <class Config>
__device__ void load_given(const float* states, int sequence, const ChainParams& params,
                           const Place<Config>& place, float (&values)[Config::kChannels]) {
  const float* row =
      states == nullptr ? nullptr : states + std::int64_t{sequence} * params.D + place.channel();
  load_state(row, values, params.D - place.channel());
}

/// What the thread keeps of its tokens between the two passes over them.
template <class Config>
struct TokenGradients {
  using Values = float[Config::kTokens][Config::kChannels];
  Values a;
  Values by_state;  // silu(gate) d_out
  Values by_gate;   // silu'(gate) d_out, to be multiplied by the state
  // x as it was loaded, if kRows: the stage may be loaded again before the second pass.
  typename Config::Piece x[Config::kRows ? Config::kTokens : 1];
  bool simple;  // all tokens exist, and none begins or ends a sequence
};

/// Turns log-decays into decays.
template <class Config>
__device__ void take_exponentials(const ChainParams& params, TokenGradients<Config>& own) {
  if (!params.log_decay) return;
#pragma unroll
  for (auto& row : own.a) {
#pragma unroll
    for (float& value : row) value = exp_flushed<Config::kExactDecay>(value);
  }
}

/// Loads a thread's tokens and multiplies d_out by silu(gate) and silu'(gate). `complete`: no token
/// of the thread lies outside the tensors, or kRows takes care of it.
template <class Config>
__device__ void differentiate_gates(const BackwardParams& params, const Place<Config>& place,
                                    const BackwardShared<Config>& shared, int stage,
                                    const TokenKind* kinds, bool complete,
                                    TokenGradients<Config>& own) {
  using Shared = BackwardShared<Config>;
  using Element = typename Config::Element;
  own.simple = are_inside<Config>(kinds) && complete;
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    shared.template unpack<typename Config::Decay>(place, stage, i, Shared::kDecay, own.a[i]);
    shared.template unpack<Element>(place, stage, i, Shared::kOut, own.by_state[i]);
    if constexpr (Config::kRows) own.x[i] = *shared.slots.piece(place, stage, i, 0);
  }
  take_exponentials(params, own);
  if (params.gate.data != nullptr) {
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      float gate[Config::kChannels];
      shared.template unpack<Element>(place, stage, i, Shared::kGate, gate);
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        const float open = logistic<Config::kExact>(gate[j]);
        const float silu = gate[j] * open;
        const float d_out = own.by_state[i][j];
        own.by_state[i][j] = d_out * silu;
        own.by_gate[i][j] = d_out * fmaf(silu, 1.0f - open, open);
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

/// Takes x of the thread's token i, in either pass.
template <class Config>
__device__ void take_x(const Place<Config>& place, const BackwardShared<Config>& shared, int stage,
                       const TokenGradients<Config>& own, int i, float (&x)[Config::kChannels]) {
  if constexpr (Config::kRows) {
    unpack_channels<1, typename Config::Element>(&own.x[i], x);
  } else {
    shared.template unpack<typename Config::Element>(place, stage, i, 0, x);
  }
}

/// Makes the maps of states of the thread's tokens; returns whether they are small.
template <class Config>
__device__ bool map_states(const BackwardParams& params, const Place<Config>& place,
                           const BackwardShared<Config>& shared, int stage, const TokenKind* kinds,
                           const TokenGradients<Config>& own, ScanMap (&maps)[Config::kChannels]) {
  const auto compose_all = [&](auto exact) {
#pragma unroll
    for (int i = 0; i < Config::kTokens; ++i) {
      float x[Config::kChannels];
      take_x(place, shared, stage, own, i, x);
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

/// Returns the gradient by the state before a token, from that by the state behind it. why
/// __fmul_rn, and __fadd_rn by its callers: if the compiler fused them in only one of the two
/// forms, that form would give other bits, and which form runs depends on neighbouring channels.
template <bool kExact = true>
__device__ inline float pass_back(float a, float by_state) {
  return kExact && a == 0.0f ? 0.0f : __fmul_rn(a, by_state);
}

/// Makes the maps of gradients by states, from the last token to the first; returns whether they
/// are small.
template <class Config>
__device__ bool map_gradients(const BackwardParams& params, const Place<Config>& place,
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
          maps[j] = {0.0f, pass_back(own.a[i][j], __fadd_rn(own.by_state[i][j], behind[j]))};
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

/// Where the thread's channels of a gradient go, if it is wanted; with kRows it is computed in any
/// case.
template <class Config, class StoredT, bool kExact>
struct GradientRows {
  StoredT* first;  // of the thread's tokens; null: not wanted
  std::int64_t stride;
  int tokens;
  int channels;

  /// `of`: the tensor's index among the results.
  __device__ GradientRows(const BackwardParams& params, const Place<Config>& place,
                          BackwardShared<Config>& shared, int of, const TokenTensor& tensor,
                          int begin)
      : tokens(place.tokens(params.sequences.T, begin)),
        channels(Config::kAligned ? Config::kChannels : params.D - place.channel()) {
    if constexpr (Config::kRows) {
      first = shared.slots.result(place, of);
      stride = Config::kWidth;
    } else {
      first =
          tensor.data == nullptr ? nullptr : place.template at<StoredT>(tensor, begin + place.row);
      stride = tensor.time_stride;
    }
  }

  /// Stores the gradient of the i-th token, which with kExact may not exist.
  __device__ void store(int i, const float (&values)[Config::kChannels]) const {
    if (!Config::kRows && (first == nullptr || (kExact && i >= tokens))) return;
    store_channels<Config::kAligned, typename Config::Piece>(first + i * stride, values, channels);
  }
};

/// Computes the states before each of the thread's tokens from the state before all of them, and
/// stores d_gate. Returns whether the states are finite.
template <class Config, bool kExact>
__device__ bool store_gate_gradients(const BackwardParams& params, const Place<Config>& place,
                                     BackwardShared<Config>& shared, int stage,
                                     const TokenKind* kinds, int begin,
                                     const TokenGradients<Config>& own,
                                     float (&state)[Config::kChannels],
                                     typename TokenGradients<Config>::Values& before) {
  using Element = typename Config::Element;
  const GradientRows<Config, Element, kExact> rows(
      params, place, shared, BackwardShared<Config>::kDGate, params.d_gate, begin);
#pragma unroll
  for (int i = 0; i < Config::kTokens; ++i) {
    float x[Config::kChannels];
    take_x(place, shared, stage, own, i, x);
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

/// Stores all gradients but d_gate, from the gradient by the state behind the thread's tokens.
/// Returns whether they are finite.
template <class Config, bool kExact>
__device__ bool store_gradients(const BackwardParams& params, const Place<Config>& place,
                                BackwardShared<Config>& shared, const TokenKind* kinds, int begin,
                                const TokenGradients<Config>& own,
                                const typename TokenGradients<Config>::Values& before,
                                float (&behind)[Config::kChannels]) {
  using Shared = BackwardShared<Config>;
  const GradientRows<Config, typename Config::Element, kExact> dx_rows(params, place, shared, 0,
                                                                       params.dx, begin);
  const GradientRows<Config, typename Config::Decay, kExact> decay_rows(
      params, place, shared, Shared::kDDecay, params.d_decay, begin);
  const auto store = [&](auto log_decay) {
#pragma unroll
    for (int i = Config::kTokens - 1; i >= 0; --i) {
      const bool outside = kExact && kinds[i].first == TokenKind::kOutside;
      if (kExact && kinds[i].last >= 0) {
        load_given(params.d_final_state, kinds[i].last, params, place, behind);
      }
      float ds[Config::kChannels], d_decay[Config::kChannels];
#pragma unroll
      for (int j = 0; j < Config::kChannels; ++j) {
        const float a = own.a[i][j];
        ds[j] = __fadd_rn(own.by_state[i][j], outside ? 0.0f : behind[j]);
        behind[j] = pass_back<kExact>(a, ds[j]);
        d_decay[j] = ds[j] * before[i][j];
        if (log_decay()) d_decay[j] = pass_back<kExact>(a, d_decay[j]);
      }
      dx_rows.store(i, ds);
      decay_rows.store(i, d_decay);
      if (kExact && kinds[i].first >= 0 && params.d_initial_state != nullptr) {
        store_state(
            params.d_initial_state + std::int64_t{kinds[i].first} * params.D + place.channel(),
            behind, params.D - place.channel());
      }
    }
  };
  // why two copies of the loop: a branch at each token costs more than the code.
  if (params.log_decay) {
    store(std::true_type{});
  } else {
    store(std::false_type{});
  }
  return are_finite(behind);
}

}  // namespace tandem::cuda::gated_scan
