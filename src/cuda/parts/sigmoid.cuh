// The logistic function and what activations make of it.
//
// e^-|z| is never above 1, so nothing overflows, and a sigmoid's complement is as exact as itself.
#pragma once

#include "cuda/parts/exp2.cuh"

namespace tandem::cuda {

/// 1 / (1 + e^-z) and 1 / (1 + e^z).
struct Sigmoid {
  float value, complement;

  explicit __device__ Sigmoid(float z) {
    const float e = fast_exp2(-fabsf(z) * kLog2E);
    const float r = reciprocal(1.0f + e);
    value = z < 0.0f ? e * r : r;
    complement = z < 0.0f ? r : e * r;
  }
};

}  // namespace tandem::cuda
