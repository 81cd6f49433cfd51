// The softmax of a warpgroup's 64 rows, a block of keys at a time, on the fragments of wgmma.
//
// A thread has parts of two rows. Weights are 2^(c s - reference) with c = scale log2 e. The
// reference follows the largest c s of the row, but only by steps of more than kSlack: what has
// been summed is scaled anew then alone, and weights stay below 2^kSlack.
#pragma once

#include "cuda/attention/reach.cuh"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::attention {

/// What a thread's two rows see: those of the query at `position` and of the one 8 behind it, of
/// the keys from `begin` to `end`.
struct SeenKeys {
  Reach reach;
  int position;
  int begin;
  int end;

  /// Gives keys that are not seen a score of -inf, or another. `first_key` is the block's.
  template <int kCount>
  __device__ void mask(float (&s)[kCount], int first_key, float hidden_score = -INFINITY) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int at = position + 8 * row;
      const int column = first_key + fragment_column(0);
      const int from = max(at - reach.left, begin) - column;
      const int to = min(at + reach.right + 1, end) - column;
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const bool hidden = (2 * i + n < from) | (2 * i + n >= to);
          s[i + 2 * row + n] = hidden ? hidden_score : s[i + 2 * row + n];
        }
      }
    }
  }
};

/// The larger one, NaN where one is NaN.
__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

struct Softmax {
  static constexpr float kSlack = 8.0f;

  float log2_scale;  // c, above 0
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // this thread's share

  /// Raises references to a block's scores. Returns by what the rows' sums are to be multiplied. A
  /// row with a NaN, or with inf, gets NaN for good.
  template <int kCount>
  __device__ float2 raise(const float (&s)[kCount]) {
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float top[2] = {s[2 * row], s[2 * row + 1]};
#pragma unroll
      for (int i = 4; i < kCount; i += 4) {
        top[0] = max_or_nan(top[0], s[2 * row + i]);
        top[1] = max_or_nan(top[1], s[2 * row + i + 1]);
      }
      top[0] = max_or_nan(top[0], top[1]);
      top[0] = max_or_nan(top[0], __shfl_xor_sync(0xFFFFFFFFu, top[0], 1));
      top[0] = max_or_nan(top[0], __shfl_xor_sync(0xFFFFFFFFu, top[0], 2));
      const float largest = top[0] * log2_scale;
      const float before = reference[row];
      if (!(largest <= before + kSlack)) reference[row] = largest;
      factor[row] = fast_exp2(before - reference[row]);
      // why: of two infinities the difference is NaN.
      if (before == reference[row]) factor[row] = 1.0f;
    }
    return {factor[0], factor[1]};
  }

  /// Replaces a block's scores by weights and adds them up, with what raise() returned for them.
  template <int kCount>
  __device__ void weigh(float (&s)[kCount], float2 factor) {
    weigh(s, factor, [](int, float x) { return fast_exp2(x); });
  }
  /// The same with an exp2(i, x) for each i of s.
  template <int kCount, class Exp2>
  __device__ void weigh(float (&s)[kCount], float2 factor, const Exp2& exp2) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float shift = reference[row] == -INFINITY ? 0.0f : -reference[row];
      // why the difference: it is NaN where the reference is infinite.
      float sums[2] = {fmaf(sum[row], row == 0 ? factor.x : factor.y, shift - shift), 0.0f};
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float& weight = s[2 * row + i + n];
          weight = exp2(i, fmaf(weight, log2_scale, shift));
          sums[n] += weight;
        }
      }
      sum[row] = sums[0] + sums[1];
    }
  }
};

/// Whether any row of the warp is to be multiplied.
__device__ inline bool changes_any(float2 factor) {
  return __any_sync(0xFFFFFFFFu, factor.x != 1.0f || factor.y != 1.0f);
}

/// Multiplies the two rows of an accumulator.
template <int kCount>
__device__ inline void scale_rows(float (&o)[kCount], float2 factor) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    o[i] *= factor.x;
    o[i + 1] *= factor.x;
    o[i + 2] *= factor.y;
    o[i + 3] *= factor.y;
  }
}

}  // namespace tandem::cuda::attention
