// 2^x on two units of a multiprocessor: what the special function unit would be late with goes to
// the one that multiplies and adds.
#pragma once

#include "cuda/parts/exp2.cuh"

namespace tandem::cuda::attention_weights {

/// Returns 2^x within 2 ulp for x < 127, 0 below -126.
__device__ inline float polynomial_exp2(float x) {
  constexpr float kRounding = 12582912.0f;  // 1.5 2^23: what is added to it becomes an integer
  const float shifted = x + kRounding;
  const float rest = x - (shifted - kRounding);
  float power = fmaf(rest, 0.00133908633f, 0.00967603177f);
  power = fmaf(power, rest, 0.0555035695f);
  power = fmaf(power, rest, 0.240221068f);
  power = fmaf(power, rest, 0.693147182f);
  power = fmaf(power, rest, 1.00000012f);
  const int bits = __float_as_int(power) + (__float_as_int(shifted) << 23);
  return x < -126.0f ? 0.0f : __int_as_float(bits);
}

/// Returns 2^x for element `i` of an accumulator, one of so many by the polynomial.
__device__ inline float shared_exp2(int i, float x) {
  constexpr int kShare = 8;
  return i / 4 % kShare == kShare - 1 ? polynomial_exp2(x) : fast_exp2(x);
}

}  // namespace tandem::cuda::attention_weights
