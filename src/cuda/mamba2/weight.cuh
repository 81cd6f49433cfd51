// A weight per head.
#pragma once

#include "ops/gated_output_problem.h"

namespace tandem::cuda {

template <class Element>
__device__ float weight_at(const WeightVector& vector, int head) {
  if (vector.dtype == DType::kFloat32) return static_cast<const float*>(vector.data)[head];
  return static_cast<float>(static_cast<const Element*>(vector.data)[head]);
}

}  // namespace tandem::cuda
