// The RMS norm in front of a product, on the CPU: n = x rstd weight for each row of x, and its
// gradient. Computed in fp32; where `dtype` is fp64 all of it is fp64, rstd and weights included.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/rms_norm_problem.h"
#include "tandem/tensor.h"

namespace tandem::cpu {

/// Computes n [M,d] from x [M,d], both of `dtype`, rounded once. rstd is what the norm gives, else
/// 1 / sqrt(mean of x^2 + norm.eps): a row of zeros gives 0, with eps = 0 NaN. kept_rstd [M] takes
/// it, or is null. A row's bits do not depend on other rows.
void rms_norm_forward(DType dtype, std::int64_t M, int d, const MatrixTensor& x,
                      const RmsNorm& norm, const MatrixTensor& n, float* kept_rstd);

/// The gradient by the weight, or null data.
struct RmsNormWeightGradient {
  DType dtype = DType::kFloat32;
  void* data = nullptr;     // [d]
  bool accumulate = false;  // added to what is there
};

/// Computes dx [M,d], of `dtype` or null, and the weight's gradient from x and dn [M,d], both of
/// `dtype`; norm.rstd must be given. With m = x rstd:
///
///   dx = addend + rstd (dn weight - m mean of (dn weight m))    d_weight = sum over rows of dn m
///
/// A null addend is 0. The sum has one order, whatever the number of threads.
void rms_norm_backward(DType dtype, std::int64_t M, int d, const MatrixTensor& x,
                       const RmsNorm& norm, const MatrixTensor& dn, const MatrixTensor& addend,
                       const MatrixTensor& dx, const RmsNormWeightGradient& d_weight);

}  // namespace tandem::cpu
