// Decay factors of one chunk of a scalar-decay recurrence, in base 2.
//
// With G_i the inclusive sum of the chunk's decays, token j reaches token i with factor 2^(G_i -
// G_j), never above 1 for decays <= 0. Decays enter the sum no lower than -256: that is -inf as far
// as a factor goes (2^-126 is the smallest that is not flushed to 0, which leaves growth of 2^130
// in between), differences never meet -inf, and behind r such resets in one chunk factors are still
// good to r * 6e-5.
#pragma once

#include <cstdint>

#include "cuda/parts/exp2.cuh"

namespace tandem::cuda {

constexpr float kForgetLog2 = -256.0f;

/// Factors of one chunk of a walk in either direction; "before" and "after" are meant along the
/// walk.
template <int kChunk>
struct alignas(16) ChunkDecay {
  float log2_sum[kChunk];    // token j reaches token i with factor 2^(log2_sum[i] - log2_sum[j])
  float from_state[kChunk];  // factor from the state before the chunk to token i
  float to_state[kChunk];    // factor from token j to the state after the chunk
  float state_to_state;      // factor from the state before to the state after
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

/// Computes the factors of a chunk. All lanes of one warp, lane l with tokens 2l and 2l+1. `scale`
/// goes where the query goes: into from_state, and in a reverse walk, where queries enter the
/// state, into to_state.
template <bool kReverse, int kChunk>
__device__ inline void compute_chunk_decay(const LogDecays& log_decay, float scale,
                                           ChunkDecay<kChunk>& out) {
  static_assert(kChunk == 64, "two tokens per lane");
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  const int lane = threadIdx.x % 32;
  const auto to_log2 = [](float natural) {
    const float log2 = natural * kLog2E;
    return log2 < kForgetLog2 ? kForgetLog2 : log2;  // NaN stays
  };
  const float first = to_log2(log_decay.own.x);
  const float second = to_log2(log_decay.own.y);

  float sum = first + second;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float earlier = __shfl_up_sync(kWarp, sum, distance);
    if (lane >= distance) sum += earlier;
  }
  const float total = __shfl_sync(kWarp, sum, 31);
  const float before = __shfl_up_sync(kWarp, sum, 1);
  const float2 sums = {(lane == 0 ? 0.0f : before) + first, sum};
  const auto store = [&](float(&to)[kChunk], float x, float y) {
    *reinterpret_cast<float2*>(&to[2 * lane]) = {x, y};
  };
  if constexpr (kReverse) {
    // The state of a reverse walk is the gradient by the state *behind* the last token walked:
    // that token's own decay is applied by the next chunk. why: with the decay in it, a chunk whose
    // decays are all strong would enter the state by operands that 16 bits cannot hold.
    const float begin = __shfl_sync(kWarp, first, 0);
    const float end = total + to_log2(log_decay.behind);
    store(out.log2_sum, -sums.x, -sums.y);
    store(out.from_state, fast_exp2(end - sums.x), fast_exp2(end - sums.y));
    store(out.to_state, scale * fast_exp2(sums.x - begin), scale * fast_exp2(sums.y - begin));
    if (lane == 0) out.state_to_state = fast_exp2(end - begin);
  } else {
    store(out.log2_sum, sums.x, sums.y);
    store(out.from_state, scale * fast_exp2(sums.x), scale * fast_exp2(sums.y));
    store(out.to_state, fast_exp2(total - sums.x), fast_exp2(total - sums.y));
    if (lane == 0) out.state_to_state = fast_exp2(total);
  }
}

}  // namespace tandem::cuda
