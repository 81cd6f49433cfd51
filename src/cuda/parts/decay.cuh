// Decay factors of one chunk of a scalar-decay recurrence, in base 2.
//
// With G_i the inclusive sum of the chunk's decays, token j reaches token i with factor 2^(G_i -
// G_j), never above 1 for decays <= 0. A sum is kept in two parts, of the decays' whole numbers,
// which fp32 adds exactly, and of what is left of each, at most 1/2: factors are good to 2e-5
// whatever the decays, and to 1e-6 where decays are mild between resets, however many of these a
// chunk has. A decay enters its sum no lower than -1024: that is -inf as far as a factor goes
// (2^-126 is the smallest that is not flushed to 0), and differences never meet -inf.
#pragma once

#include <cstdint>

#include "cuda/parts/exp2.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda {

constexpr float kForgetLog2 = -1024.0f;

/// A sum of decays in base 2: of their whole numbers, and of what is left.
struct Log2Sum {
  float whole;
  float rest;

  /// The sum of one natural-log decay. NaN stays.
  static __device__ Log2Sum of(float natural) {
    const float log2 = natural * kLog2E;
    if (log2 < kForgetLog2) return {kForgetLog2, 0.0f};
    const float whole = rintf(log2);
    return {whole, fmaf(natural, kLog2E, -whole)};
  }
  __device__ float value() const { return whole + rest; }

  friend __device__ Log2Sum operator+(Log2Sum a, Log2Sum b) {
    return {a.whole + b.whole, a.rest + b.rest};
  }
  friend __device__ Log2Sum operator-(Log2Sum a, Log2Sum b) {
    return {a.whole - b.whole, a.rest - b.rest};
  }
};

__device__ inline float fast_exp2(Log2Sum sum) { return fast_exp2(sum.value()); }

/// Stores what a lane has of its two tokens.
template <int kChunk>
__device__ inline void store_two(float (&to)[kChunk], float x, float y) {
  *reinterpret_cast<float2*>(&to[2 * (threadIdx.x % 32)]) = {x, y};
}

/// The sums G_i of a chunk, as pairs of its tokens read them. Where none passes 256, as is usual,
/// one float holds both parts of a sum, good enough, and a pair costs no more than a subtraction.
template <int kChunk>
struct alignas(16) TokenSums {
  float sum[kChunk];    // or, where they are in parts, what is left of the sums
  float whole[kChunk];  // of sums in parts
  bool in_parts;

  /// All lanes of one warp, lane l with tokens 2l and 2l+1.
  __device__ void store(Log2Sum x, Log2Sum y) {
    const bool large = fmaxf(fabsf(x.value()), fabsf(y.value())) > 256.0f;
    const bool parts = __any_sync(0xFFFFFFFFu, large);
    store_two(sum, parts ? x.rest : x.value(), parts ? y.rest : y.value());
    store_two(whole, x.whole, y.whole);
    if (threadIdx.x % 32 == 0) in_parts = parts;
  }
};

/// Differences of a chunk's sums from those of this thread's rows of an accumulator.
template <int kChunk>
struct RowDifferences {
  const TokenSums<kChunk>& sums;
  const bool in_parts;
  const float row[2];

  // why a vote: it tells the compiler that a warp's lanes agree.
  explicit __device__ RowDifferences(const TokenSums<kChunk>& sums)
      : sums(sums),
        in_parts(__any_sync(0xFFFFFFFFu, sums.in_parts)),
        row{sums.sum[fragment_row()], sums.sum[fragment_row() + 8]} {}

  /// Leaves G_column - G_row of the 16 columns from `16 * step` on, in the order of an
  /// accumulator's values; but for add_wholes() where sums are in parts.
  __device__ void take(int step, float (&difference)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float2 sum = two(sums.sum, step, i);
      difference[i] = sum.x - row[i / 2 % 2];
      difference[i + 1] = sum.y - row[i / 2 % 2];
    }
  }
  __device__ void add_wholes(int step, float (&difference)[8]) const {
    const float whole[2] = {sums.whole[fragment_row()], sums.whole[fragment_row() + 8]};
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const float2 sum = two(sums.whole, step, i);
      difference[i] += sum.x - whole[i / 2 % 2];
      difference[i + 1] += sum.y - whole[i / 2 % 2];
    }
  }

 private:
  static __device__ float2 two(const float (&of_tokens)[kChunk], int step, int i) {
    return *reinterpret_cast<const float2*>(&of_tokens[fragment_column(2 * step + i / 4)]);
  }
};

/// Factors of one chunk of a walk in either direction, between its tokens and states; "before" and
/// "after" are meant along the walk.
template <int kChunk>
struct alignas(16) StateFactors {
  float from_state[kChunk];  // factor from the state before the chunk to token i
  float to_state[kChunk];    // factor from token j to the state after the chunk
  float state_to_state;      // factor from the state before to the state after
  float through;  // of a reverse walk: factor across the chunk in time, to what the state before is
                  // a gradient by
};
template <int kChunk>
struct ChunkDecay : StateFactors<kChunk> {
  TokenSums<kChunk> sums;  // token j reaches token i with factor 2^(G_i - G_j)
};

/// Returns a natural-log decay, or -inf where its factor rounds to 0 in fp32: what a sum of decays
/// reports.
__device__ inline float forget_to_infinity(float log_decay) {
  constexpr float kVanishes = -104.0f;  // 2^-150 and less
  return log_decay < kVanishes ? -__int_as_float(0x7F800000) : log_decay;
}

/// Natural-log decays of this lane's two tokens of a chunk, and of the token behind the chunk; 0
/// where there is no token.
struct LogDecays {
  float2 own;
  float behind;
};

/// Sums of a chunk's decays. All lanes of one warp, lane l with tokens 2l and 2l+1.
struct ChunkSums {
  Log2Sum x, y;   // inclusive, of this lane's tokens
  Log2Sum first;  // the first token's decay
  Log2Sum total;
  Log2Sum end;  // with the token behind

  explicit __device__ ChunkSums(const LogDecays& log_decays) {
    const Log2Sum own = Log2Sum::of(log_decays.own.x);
    y = own + Log2Sum::of(log_decays.own.y);
    y = {inclusive_sum(y.whole), inclusive_sum(y.rest)};
    x = Log2Sum{sum_before(y.whole), sum_before(y.rest)} + own;
    first = {__shfl_sync(0xFFFFFFFFu, own.whole, 0), __shfl_sync(0xFFFFFFFFu, own.rest, 0)};
    total = {last_lane(y.whole), last_lane(y.rest)};
    end = total + Log2Sum::of(log_decays.behind);
  }
};

/// Computes the factors of a chunk. All lanes of one warp. `scale` goes where the query goes: into
/// from_state, and in a reverse walk, where queries enter the state, into to_state.
template <bool kReverse>
__device__ inline void compute_decay(const ChunkSums& sums, float scale, StateFactors<64>& out) {
  const auto& [x, y, first, total, end] = sums;
  const bool writes = threadIdx.x % 32 == 0;
  if constexpr (kReverse) {
    // The state of a reverse walk is the gradient by the state *behind* the last token walked:
    // that token's own decay is applied by the next chunk. why: with the decay in it, a chunk whose
    // decays are all strong would enter the state by operands that 16 bits cannot hold.
    store_two(out.from_state, fast_exp2(end - x), fast_exp2(end - y));
    store_two(out.to_state, scale * fast_exp2(x - first), scale * fast_exp2(y - first));
    if (writes) {
      out.state_to_state = fast_exp2(end - first);
      out.through = fast_exp2(end);
    }
  } else {
    store_two(out.from_state, scale * fast_exp2(x), scale * fast_exp2(y));
    store_two(out.to_state, fast_exp2(total - x), fast_exp2(total - y));
    if (writes) out.state_to_state = fast_exp2(total);
  }
}
/// The same, and the sums that pairs of tokens read: in a reverse walk negative ones.
template <bool kReverse>
__device__ inline void compute_decay(const ChunkSums& sums, float scale, ChunkDecay<64>& out) {
  compute_decay<kReverse>(sums, scale, static_cast<StateFactors<64>&>(out));
  constexpr Log2Sum kNone{0.0f, 0.0f};
  out.sums.store(kReverse ? kNone - sums.x : sums.x, kReverse ? kNone - sums.y : sums.y);
}

}  // namespace tandem::cuda
