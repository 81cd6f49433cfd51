// The RMS norm in front of a product as kernels of its own, for the baselines.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/rms_norm_problem.h"
#include "tandem/tensor.h"

namespace tandem::bench {

/// Rows [M,d] of 16 bits and their norm.
struct NormedRows {
  DType dtype;
  std::int64_t M;
  int d;
  MatrixTensor x;
  RmsNorm norm;
};

/// Throws Unsupported for a d or rows that are not whole vectors of 16 bytes, and for a d above
/// 8192, of which a CTA would not hold a row; `name` is the baseline's.
void check_norm(const char* name, const NormedRows& rows);

/// n = x rstd weight; kept_rstd [M] takes rstd, or is null.
void normalize(const NormedRows& rows, const MatrixTensor& n, float* kept_rstd,
               cudaStream_t stream);

/// The gradient by the norm's weight, or null data.
struct NormWeightGradient {
  DType dtype;
  void* data;  // [d]
  bool accumulate;
};

/// dx, or null data, and the weight's gradient from dn. `sums` are norm_sums_bytes.
void normalize_backward(const NormedRows& rows, const MatrixTensor& dn, const MatrixTensor& dx,
                        const NormWeightGradient& d_weight, float* sums, cudaStream_t stream);
std::size_t norm_sums_bytes(const NormedRows& rows);

}  // namespace tandem::bench
