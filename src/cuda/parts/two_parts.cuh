// An fp32 value as two of 16 bits: rounded, and what rounding took away. Together they have 16
// bits of precision in bf16 and 22 in fp16. A value that is not finite when rounded is what it was
// rounded to.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <type_traits>

namespace tandem::cuda {

/// What the second part is multiplied by. fp16: without it the rest of small values would vanish.
template <class Element>
constexpr float kRestScale = std::is_same_v<Element, __half> ? 2048.0f : 1.0f;

/// The second part of a value, itself not rounded yet.
template <class Element>
__device__ inline float rest_of(float value) {
  const float rest = value - static_cast<float>(static_cast<Element>(value));
  return fabsf(rest) <= FLT_MAX ? kRestScale<Element> * rest : 0.0f;
}

template <class Element>
__device__ inline float join_parts(float rounded, float rest) {
  return fmaf(rest, 1.0f / kRestScale<Element>, rounded);
}

}  // namespace tandem::cuda
