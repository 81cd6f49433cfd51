// exp of a log decay, and the logistic function of a gate, to the accuracy of what they are read
// from and written to.
#pragma once

#include "cuda/parts/exp2.cuh"

namespace tandem::cuda::scan {

/// Returns e^x, flushed to 0 below 2^-126. Relative error 1e-7 at any x with kExact; else 2^-22,
/// plus 2^-24 |x| from rounding x log2(e).
template <bool kExact>
__device__ inline float exp_flushed(float x) {
  if constexpr (!kExact) {
    return fast_exp2(x * kLog2E);
  } else {
    constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    constexpr float kSmallest = 1.17549435e-38f;
    // why: avoids infinity minus infinity. A NaN passes both comparisons.
    x = x < -200.0f ? -200.0f : x > 200.0f ? 200.0f : x;
    const float n = rintf(x * kLog2E);
    const float r = fmaf(-n, kLn2Low, fmaf(-n, kLn2High, x));
    float power = 1.0f / 5040;  // Taylor's series: |r| <= ln(2) / 2
    power = fmaf(power, r, 1.0f / 720);
    power = fmaf(power, r, 1.0f / 120);
    power = fmaf(power, r, 1.0f / 24);
    power = fmaf(power, r, 1.0f / 6);
    power = fmaf(power, r, 0.5f);
    power = fmaf(power, r, 1.0f);
    power = fmaf(power, r, 1.0f) * fast_exp2(n);
    return power < kSmallest ? 0.0f : power;
  }
}

/// Returns 1 / (1 + e^-x).
template <bool kExact>
__device__ inline float logistic(float x) {
  const float sum = 1.0f + exp_flushed<kExact>(-x);
  return kExact ? __frcp_rn(sum) : reciprocal(sum);
}

}  // namespace tandem::cuda::scan
