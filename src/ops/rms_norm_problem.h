// The RMS norm in front of a product, for the ops that have one.
#pragma once

#include "tandem/tensor.h"

namespace tandem {

/// An RMS norm in front of a product, n = x rstd weight. Null weight: none, n = x.
struct RmsNorm {
  const void* weight = nullptr;  // [d]
  DType weight_dtype = DType::kFloat32;
  double eps = 0;
  const float* rstd = nullptr;  // [M]: given, else computed with eps
};

}  // namespace tandem
