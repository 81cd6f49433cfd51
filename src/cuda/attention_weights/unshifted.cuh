// Exponentials of scores without a look for the row's largest: 2^(exponent_scale() s), and whether
// fp32 holds their sum as well as relative to it.
#pragma once

#include "cuda/parts/exp2.cuh"

namespace tandem::cuda::attention_weights {

/// scale log2 e. why not 0: times -inf it is NaN.
__device__ inline float exponent_scale(float scale) {
  return scale == 0.0f ? 1e-30f : scale * kLog2E;
}

__device__ inline bool sum_holds(float sum) { return sum >= 0x1p-64f && sum <= 0x1p96f; }

}  // namespace tandem::cuda::attention_weights
