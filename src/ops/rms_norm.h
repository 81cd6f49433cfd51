// An RMS norm of rows and its gradient as passes of their own, for the blocks: ops have theirs
// inside.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"
#include "ops/rms_norm_problem.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// n = x rstd weight, rounded once; n and x [M,d] are of `dtype`.
struct RmsNormForwardProblem {
  DType dtype = DType::kBFloat16;
  Device device;
  std::int64_t M = 0;
  int d = 0;
  MatrixTensor x;
  RmsNorm norm;
  MatrixTensor n;
  float* kept_rstd = nullptr;  // [M] or null
};

/// With m = x rstd: dx = addend + rstd (dn weight - m mean of (dn weight m)), d_weight = sum over
/// rows of dn m. Matrices [M,d] are of `dtype`.
struct RmsNormBackwardProblem {
  DType dtype = DType::kBFloat16;
  Device device;
  std::int64_t M = 0;
  int d = 0;
  MatrixTensor x;
  RmsNorm norm;  // rstd is given
  MatrixTensor dn;
  MatrixTensor addend = {};            // null: 0
  MatrixTensor dx = {};                // null: not wanted
  WeightVectorGradient d_weight = {};  // [d] or null
  bool accumulate = false;             // d_weight is added to what is there
};

namespace cpu {
void rms_norm_forward(const RmsNormForwardProblem& problem);
void rms_norm_backward(const RmsNormBackwardProblem& problem);
}  // namespace cpu

namespace cuda {
void rms_norm_forward(const RmsNormForwardProblem& problem, const Context& context);
void rms_norm_backward(const RmsNormBackwardProblem& problem, const Context& context);
std::size_t rms_norm_backward_workspace_bytes(const RmsNormBackwardProblem& problem);
}  // namespace cuda

}  // namespace tandem
