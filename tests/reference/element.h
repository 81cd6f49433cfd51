// What every fp64 definition reads tensors with.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

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

/// Rounds to a dtype.
inline double rounded(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kBFloat16: return to_float(from_float<BFloat16>(narrow));
    case DType::kFloat16: return to_float(from_float<Float16>(narrow));
    case DType::kFloat64: return value;
    default: return narrow;
  }
}

inline double element_at(const TensorView& x, std::int64_t row, std::int64_t column) {
  return element(x.dtype, x.data, row * x.strides[0] + column);
}

/// Reads columns [first, first + count) of a row of a matrix.
inline std::vector<double> read_row(const TensorView& x, std::int64_t row, std::int64_t first,
                                    std::int64_t count) {
  std::vector<double> values;
  values.reserve(count);
  for (std::int64_t i = first; i < first + count; ++i) {
    values.push_back(element_at(x, row, i));
  }
  return values;
}

inline std::vector<double> read_vector(const TensorView& x) {
  std::vector<double> values;
  values.reserve(x.shape[0]);
  for (std::int64_t i = 0; i < x.shape[0]; ++i) values.push_back(element(x.dtype, x.data, i));
  return values;
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
