// What gemm_swiglu's kernels are called with: arguments after every check.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/rms_norm_problem.h"
#include "tandem/device.h"
#include "tandem/ops/gemm_swiglu.h"
#include "tandem/tensor.h"

namespace tandem {

/// GemmSwigluForwardArgs after every check: shapes agree, dtypes and devices fit, nothing overlaps.
struct GemmSwigluForwardProblem {
  DType dtype = DType::kBFloat16;
  Device device;
  std::int64_t M = 0;  // may be 0
  int d = 0;
  int F = 0;
  MatrixTensor x;            // [M,d]
  MatrixTensor gate_weight;  // [F,d]
  MatrixTensor up_weight;    // [F,d]
  GateActivation activation = GateActivation::kSilu;
  RmsNorm norm;
  MatrixTensor out;  // [M,F]
  // Kept for the backward, or null; both slopes or neither.
  MatrixTensor gate_slope;     // [M,F]
  MatrixTensor up_slope;       // [M,F]
  float* kept_rstd = nullptr;  // [M]
};

/// GemmSwigluBackwardArgs after every check. Null gradients are not wanted.
struct GemmSwigluBackwardProblem {
  DType dtype = DType::kBFloat16;
  Device device;
  std::int64_t M = 0;  // may be 0: sums over rows are 0 then
  int d = 0;
  int F = 0;
  MatrixTensor x;
  MatrixTensor gate_weight;
  MatrixTensor up_weight;
  RmsNorm norm;  // with rstd, given or kept, where there is one
  MatrixTensor gate_slope;
  MatrixTensor up_slope;
  MatrixTensor d_out;
  MatrixTensor dx;
  DType d_gate_weight_dtype = DType::kFloat32;
  MatrixTensor d_gate_weight;
  DType d_up_weight_dtype = DType::kFloat32;
  MatrixTensor d_up_weight;
  DType d_norm_weight_dtype = DType::kFloat32;
  void* d_norm_weight = nullptr;  // [d]
  MatrixTensor addend;            // [M,d], of dx, with a norm
  bool accumulate = false;        // weights' gradients are added to what is there
};

}  // namespace tandem
