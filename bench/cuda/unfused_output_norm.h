// The norm behind gated_output's sum as kernels of its own, for the baseline.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"
#include "tandem/tensor.h"

namespace tandem::bench {

/// Rows [M,d] of 16 bits and their norm, which is not none.
struct NormedSum {
  DType dtype;
  std::int64_t M;
  int d;
  MatrixTensor sum;
  OutputNorm norm;
  WeightVector weight;  // [d]; null: 1
  WeightVector bias;    // [d]; null: 0
  double eps;
};

/// Throws Unsupported for a d or rows that are not whole vectors of 16 bytes, and for a d above
/// 8192, of which a CTA would not hold a row; `name` is the baseline's.
void check_norm(const char* name, const NormedSum& rows);

/// out = norm(sum); mean and rstd [M] are null where they are not wanted.
void normalize(const NormedSum& rows, const MatrixTensor& out, float* mean, float* rstd,
               cudaStream_t stream);

/// What the norm's backward reads and makes. d_out or d_sum may be null, and each output.
struct NormedSumGradients {
  const float* mean;  // [M], of layer_norm
  const float* rstd;  // [M]
  MatrixTensor d_out, d_sum;
  MatrixTensor d_residual;
  WeightVectorGradient d_weight, d_norm_bias;
  WeightVectorGradient d_bias;  // the sum over rows of d_residual
  bool accumulate;
};

/// `sums` are output_norm_sums_bytes.
void normalize_backward(const NormedSum& rows, const NormedSumGradients& gradients, float* sums,
                        cudaStream_t stream);
std::size_t output_norm_sums_bytes(const NormedSum& rows);

}  // namespace tandem::bench
