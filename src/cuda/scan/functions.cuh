// exp of a log decay, and the logistic function of a gate, to the accuracy of what they are read
// from and written to.
#pragma once

namespace tandem::cuda {

/// 2^x, flushed to 0 below 2^-126; relative error 2^-22.
__device__ inline float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// e^x, flushed to 0 below 2^-126. kExact: to 2^-22 at any x; else the error of x log2(e), rounded,
/// comes on top, 2^-24 |x|.
template <bool kExact>
__device__ inline float exp_flushed(float x) {
  constexpr float kLog2E = 1.44269502f;
  if constexpr (!kExact) {
    return exp2_flushed(x * kLog2E);
  } else {
    constexpr float kLog2ELow = 1.92596303e-8f;  // log2(e) = kLog2E + kLog2ELow
    constexpr float kLn2 = 0.693147181f;
    // why: the remainder of an infinity is NaN. A NaN passes both comparisons.
    x = x < -200.0f ? -200.0f : x > 200.0f ? 200.0f : x;
    const float product = x * kLog2E;
    const float remainder = fmaf(x, kLog2ELow, fmaf(x, kLog2E, -product));
    const float power = exp2_flushed(product);
    return power == __int_as_float(0x7F800000) ? power : fmaf(power, remainder * kLn2, power);
  }
}

/// 1 / (1 + e^-x)
template <bool kExact>
__device__ inline float logistic(float x) {
  const float sum = 1.0f + exp_flushed<kExact>(-x);
  return kExact ? __frcp_rn(sum) : reciprocal(sum);
}

}  // namespace tandem::cuda
