// What calls are computed in: fp32, and fp64 where their tensors are fp64, which the CPU alone
// takes.
#pragma once

#include <type_traits>

#include "tandem/tensor.h"

namespace tandem {

/// The dtype of states, and of what else is fp32, beside activations of `dtype`.
constexpr DType real_dtype(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

/// What values that are stored as T are computed in.
template <typename T>
using RealOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename Real>
constexpr DType kRealType = std::is_same_v<Real, double> ? DType::kFloat64 : DType::kFloat32;

/// Returns what a problem has as float*, states and decays: doubles where its dtype is fp64.
template <typename Real>
Real* as(float* data) {
  return reinterpret_cast<Real*>(data);
}
template <typename Real>
const Real* as(const float* data) {
  return reinterpret_cast<const Real*>(data);
}

/// Returns a problem's scale.
template <typename Real, class Problem>
Real scale_of(const Problem& problem) {
  if constexpr (std::is_same_v<Real, double>) {
    return static_cast<Real>(problem.scale) + problem.scale_rest;
  } else {
    return problem.scale;
  }
}

/// Calls run.operator()<Real>() with what tensors of `dtype` are computed in.
template <typename Run>
void run_with_real(DType dtype, const Run& run) {
  if (dtype == DType::kFloat64) {
    run.template operator()<double>();
  } else {
    run.template operator()<float>();
  }
}

}  // namespace tandem
