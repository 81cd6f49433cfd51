// What rms_norm_gemm's kernels are called with: arguments after every check.
#pragma once

#include "ops/projection_problem.h"
#include "ops/rms_norm_problem.h"

namespace tandem {

/// RmsNormGemmForwardArgs after every check: a projection of n, whose x is still to be normalised.
struct RmsNormGemmForwardProblem {
  ProjectionForwardProblem projection;  // segments without activation, some with heads
  RmsNorm norm;
  float* kept_rstd = nullptr;  // [M] or null
};

/// RmsNormGemmBackwardArgs after every check: the gradient of a projection of n. Its x is that of
/// the norm, its dx that of the norm's input.
struct RmsNormGemmBackwardProblem {
  ProjectionBackwardProblem projection;  // accumulate: of all weights' gradients
  RmsNorm norm;                          // with rstd
  DType d_norm_weight_dtype = DType::kFloat32;
  void* d_norm_weight = nullptr;  // [d] or null
  MatrixTensor addend;            // [M,d], of dx, or null
};

}  // namespace tandem
