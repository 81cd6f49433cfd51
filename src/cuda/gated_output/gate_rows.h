// The gate and the group norm in front of gated_output's product, as passes of their own.
// Instantiated in gate_rows.cu.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"

namespace tandem::cuda::gated_output {

/// a, d columns wide.
struct GateParams {
  std::int64_t M = 0;
  int d = 0;
  GatedRows rows;
  MatrixTensor given_rstd;  // fp32, of the group norm; null: computed with
  float group_eps = 0.0f;
  MatrixTensor gated;
  MatrixTensor group_rstd;  // fp32, what was computed; null: not kept
};
template <class Element>
void launch_gate(const char* name, const GateParams& params, void* stream);

/// What o, the gate and the group norm's weight have of d_gated. Null outputs are not wanted.
struct GateGradientParams {
  std::int64_t M = 0;
  int d = 0;
  GatedRows rows;
  MatrixTensor group_rstd;  // fp32
  MatrixTensor d_gated;
  MatrixTensor d_o;
  MatrixTensor d_gate;
  WeightVectorGradient d_group_norm_weight;
  bool accumulate = false;
  float* partial_sums = nullptr;  // [most_group_slices(),d], where d_group_norm_weight is wanted
};
template <class Element>
void launch_gate_gradient(const char* name, const GateGradientParams& params, void* stream);

/// Into how many slices rows are cut at most for d_group_norm_weight.
int most_group_slices(std::int64_t M, int d, int group_width);

}  // namespace tandem::cuda::gated_output
