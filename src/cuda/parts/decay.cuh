// Decay factors of one chunk of a scalar-decay recurrence, in base 2.
//
// With G_i the inclusive sum of the chunk's decays, token j reaches token i with factor 2^(G_i -
// G_j), never above 1 for decays <= 0. Decays enter the sum no lower than -256: that is -inf as far
// as a factor goes (2^-126 is the smallest that is not flushed to 0, which leaves growth of 2^130
// in between), and differences never meet -inf. Strong decays are summed apart, as whole numbers,
// so that only the last step rounds: behind r resets in one chunk factors between tokens are good
// to r * 1.1e-5, and factors from and to states to 1e-5.
#pragma once

#include <cstdint>

#include "cuda/parts/exp2.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda {

/// A sum of decays in base 2. With strong ones among them it has two parts: their whole numbers,
/// which fp32 adds exactly, and the rest. why a parameter: chunks without them pay nothing for it.
template <bool kStrong>
struct LogSum {
  float rest = 0.0f;
  float whole = 0.0f;  // not looked at without strong decays

  /// Of a natural-log decay, taken as no lower than -256 in base 2.
  __device__ static LogSum of(float natural) {
    constexpr float kForget = -256.0f;
    float log2 = natural * kLog2E;
    log2 = log2 < kForget ? kForget : log2;  // NaN stays
    if constexpr (!kStrong) return {log2};
    const float whole = log2 < kLeastStrong ? rintf(log2) : 0.0f;
    return {log2 - whole, whole};
  }
  /// Whether a natural-log decay is strong: sums of 64 others are fp32 with 13 bits or more behind
  /// the point.
  __device__ static bool is_strong(float natural) { return natural * kLog2E < kLeastStrong; }

  __device__ friend LogSum operator+(LogSum a, LogSum b) {
    if constexpr (!kStrong) return {a.rest + b.rest};
    return {a.rest + b.rest, a.whole + b.whole};
  }
  __device__ friend LogSum operator-(LogSum a, LogSum b) {
    if constexpr (!kStrong) return {a.rest - b.rest};
    return {a.rest - b.rest, a.whole - b.whole};
  }
  __device__ float value() const { return kStrong ? whole + rest : rest; }
  __device__ float factor() const { return fast_exp2(value()); }

 private:
  static constexpr float kLeastStrong = -16.0f;
};

/// Inclusive sums of a chunk of 64 decays, of tokens 2l and 2l+1 in lane l of one warp. All lanes
/// call.
template <bool kStrong>
struct ChunkSums {
  LogSum<kStrong> x, y;
  LogSum<kStrong> first;  // of the chunk's first token alone
  LogSum<kStrong> total;

  __device__ explicit ChunkSums(float2 natural) {
    const auto own = LogSum<kStrong>::of(natural.x);
    y = own + LogSum<kStrong>::of(natural.y);
    y.rest = inclusive_sum(y.rest);
    x.rest = sum_before(y.rest) + own.rest;
    first.rest = __shfl_sync(0xFFFFFFFFu, own.rest, 0);
    total.rest = last_lane(y.rest);
    if constexpr (kStrong) {
      y.whole = inclusive_sum(y.whole);
      x.whole = sum_before(y.whole) + own.whole;
      first.whole = __shfl_sync(0xFFFFFFFFu, own.whole, 0);
      total.whole = last_lane(y.whole);
    }
  }

  /// The two sums in one fp32 each, for differences: less half of the chunk's whole numbers, since
  /// fp32 is finer near 0.
  __device__ float2 centred() const {
    if constexpr (!kStrong) return {x.rest, y.rest};
    const float middle = rintf(0.5f * total.whole);
    return {x.whole - middle + x.rest, y.whole - middle + y.rest};
  }
};

/// Calls work.operator()<kStrong>() as the decays of a warp's lanes have it. All lanes call.
template <class Work>
__device__ inline void by_strength(bool strong, const Work& work) {
  if (__any_sync(0xFFFFFFFFu, strong)) {
    work.template operator()<true>();
  } else {
    work.template operator()<false>();
  }
}
/// Whether one of a lane's two decays is strong.
__device__ inline bool any_strong(float2 natural) {
  return LogSum<true>::is_strong(natural.x) || LogSum<true>::is_strong(natural.y);
}

/// Factors of one chunk of a walk in either direction; "before" and "after" are meant along the
/// walk.
template <int kChunk>
struct alignas(16) ChunkDecay {
  float log2_sum[kChunk];    // token j reaches token i with factor 2^(log2_sum[i] - log2_sum[j])
  float from_state[kChunk];  // factor from the state before the chunk to token i
  float to_state[kChunk];    // factor from token j to the state after the chunk
  float state_to_state;      // factor from the state before to the state after
  float through;             // of a reverse walk: all decays, the first token's and the one behind
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

/// Stores the factors of a chunk. All lanes of one warp, lane l with tokens 2l and 2l+1; `behind`
/// is LogDecays'. `scale` goes where the query goes: into from_state, and in a reverse walk, where
/// queries enter the state, into to_state.
template <bool kReverse, bool kStrong, int kChunk>
__device__ inline void store_chunk_decay(const ChunkSums<kStrong>& sums, float behind, float scale,
                                         ChunkDecay<kChunk>& out) {
  static_assert(kChunk == 64, "two tokens per lane");
  const int lane = threadIdx.x % 32;
  const auto store = [&](float(&to)[kChunk], float x, float y) {
    *reinterpret_cast<float2*>(&to[2 * lane]) = {x, y};
  };
  const float2 centred = sums.centred();
  if constexpr (kReverse) {
    // The state of a reverse walk is the gradient by the state *behind* the last token walked:
    // that token's own decay is applied by the next chunk. why: with the decay in it, a chunk whose
    // decays are all strong would enter the state by operands that 16 bits cannot hold.
    const auto end = sums.total + LogSum<kStrong>::of(behind);
    store(out.log2_sum, -centred.x, -centred.y);
    store(out.from_state, (end - sums.x).factor(), (end - sums.y).factor());
    store(out.to_state, scale * (sums.x - sums.first).factor(),
          scale * (sums.y - sums.first).factor());
    if (lane == 0) {
      out.state_to_state = (end - sums.first).factor();
      out.through = end.factor();
    }
  } else {
    store(out.log2_sum, centred.x, centred.y);
    store(out.from_state, scale * sums.x.factor(), scale * sums.y.factor());
    store(out.to_state, (sums.total - sums.x).factor(), (sums.total - sums.y).factor());
    if (lane == 0) out.state_to_state = sums.total.factor();
  }
}

template <bool kReverse, int kChunk>
__device__ inline void compute_chunk_decay(const LogDecays& log_decay, float scale,
                                           ChunkDecay<kChunk>& out) {
  by_strength(any_strong(log_decay.own), [&]<bool kStrong> {
    store_chunk_decay<kReverse>(ChunkSums<kStrong>(log_decay.own), log_decay.behind, scale, out);
  });
}

/// The factors of both directions.
template <int kChunk>
__device__ inline void compute_chunk_decays(const LogDecays& log_decay, float scale,
                                            ChunkDecay<kChunk>& forward,
                                            ChunkDecay<kChunk>& reverse) {
  by_strength(any_strong(log_decay.own), [&]<bool kStrong> {
    const ChunkSums<kStrong> sums(log_decay.own);
    store_chunk_decay<false>(sums, 0.0f, scale, forward);
    store_chunk_decay<true>(sums, log_decay.behind, scale, reverse);
  });
}

}  // namespace tandem::cuda
