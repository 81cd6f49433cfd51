// What every fp64 definition reads tensors with.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/float16.h"
#include "core/real.h"
#include "tandem/tensor.h"

namespace tandem::reference {

inline double element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kBFloat16: return to_float(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16: return to_float(static_cast<const Float16*>(data)[index]);
    case DType::kFloat64: return static_cast<const double*>(data)[index];
    default: return static_cast<const float*>(data)[index];
  }
}

/// Reads what a problem of `dtype` has as float*: states and decays.
inline double real(DType dtype, const float* data, std::int64_t index) {
  return element(real_dtype(dtype), data, index);
}

/// Whether a log decay leaves nothing: its exponential is 0 in what tensors of `dtype` are computed
/// in.
inline bool forgets(DType dtype, double log_decay) {
  const double decay = std::exp(log_decay);
  return dtype == DType::kFloat64 ? decay == 0 : static_cast<float>(decay) == 0;
}

}  // namespace tandem::reference
