// What gated_output's kernels are called with: arguments after every check.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/device.h"
#include "tandem/ops/gated_output.h"
#include "tandem/tensor.h"

namespace tandem {

/// A vector of weights, o's dtype or fp32, and the gradient of one. Null: absent, or not wanted.
struct WeightVector {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
};
struct WeightVectorGradient {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
};

/// a, [M,d_in], as the product of gated_output has it.
struct GatedRows {
  MatrixTensor o;
  MatrixTensor gate;  // null: none
  OutputGate gate_activation = OutputGate::kNone;
  int group_width = 0;  // of h; 0: there is no h
  WeightVector group_norm_weight;
  bool group_weight_repeats = false;  // [group_width], the same for each group, else [d_in]
  bool norm_behind_gate = false;

  /// Whether a is o as it lies.
  bool is_o() const { return gate.data == nullptr && group_width == 0; }
};

/// GatedOutputForwardArgs after every check: shapes agree, dtypes and devices fit, nothing
/// overlaps.
struct GatedOutputForwardProblem {
  DType dtype = DType::kBFloat16;
  Device device;
  std::int64_t M = 0;  // may be 0
  int d_in = 0;
  int d = 0;
  GatedRows rows;
  double group_eps = 0;
  MatrixTensor weight;    // [d,d_in]
  WeightVector bias;      // [d]
  MatrixTensor residual;  // [M,d] or null
  OutputNorm norm = OutputNorm::kNone;
  WeightVector norm_weight;  // [d]; null: 1
  WeightVector norm_bias;    // [d]; null: 0
  double eps = 0;
  MatrixTensor out;  // [M,d]
  // Null: not wanted.
  MatrixTensor sum;         // [M,d]
  float* mean = nullptr;    // [M]
  float* rstd = nullptr;    // [M]
  MatrixTensor gated;       // [M,d_in]
  MatrixTensor group_rstd;  // fp32 [M,d_in/group_width]
};

/// GatedOutputBackwardArgs after every check. Null outputs are not wanted.
struct GatedOutputBackwardProblem {
  DType dtype = DType::kBFloat16;
  Device device;
  std::int64_t M = 0;  // may be 0: sums over rows are 0 then
  int d_in = 0;
  int d = 0;
  GatedRows rows;
  MatrixTensor group_rstd;  // fp32 [M,d_in/group_width]
  MatrixTensor gated;       // [M,d_in] or null
  MatrixTensor weight;
  OutputNorm norm = OutputNorm::kNone;
  WeightVector norm_weight;
  MatrixTensor sum;             // [M,d], with a norm
  const float* mean = nullptr;  // [M], with layer_norm
  const float* rstd = nullptr;  // [M], with a norm
  MatrixTensor d_out;           // [M,d] or null: 0, as d_sum
  MatrixTensor d_sum;
  MatrixTensor d_o;
  MatrixTensor d_gate;
  MatrixTensor d_residual;
  DType d_weight_dtype = DType::kFloat32;
  MatrixTensor d_weight;
  WeightVectorGradient d_bias;
  WeightVectorGradient d_group_norm_weight;
  WeightVectorGradient d_norm_weight;
  WeightVectorGradient d_norm_bias;
  bool accumulate = false;  // gradients of weights and biases are added to what is there
};

}  // namespace tandem
