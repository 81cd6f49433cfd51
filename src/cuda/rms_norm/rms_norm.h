// An RMS norm of rows as a pass of its own, and its backward: for the ops that have one in front of
// a product. Instantiated in rms_norm.cu.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/runtime/workspace.h"
#include "ops/rms_norm_problem.h"

namespace tandem::cuda::rms_norm {

/// Rows x [M,d] and their norm.
struct Rows {
  std::int64_t M = 0;
  int d = 0;
  MatrixTensor x;
  RmsNorm norm;
};

/// n = x rstd weight, rounded once.
struct NormalizeParams : Rows {
  MatrixTensor n;              // null: only rstd is wanted
  float* kept_rstd = nullptr;  // [M] or null
};
template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream);

/// With m = x rstd and g = dn weight: dx = rstd (g - m mean of g m). The norm's rstd is given.
struct InputGradientParams : Rows {
  MatrixTensor dn;
  MatrixTensor dx;
};
template <class Element>
void launch_input_gradient(const char* name, const InputGradientParams& params, void* stream);

/// d_weight = sum over rows of dn x rstd, or added to what is there.
struct WeightGradientParams : Rows {
  MatrixTensor dn;
  void* d_weight = nullptr;  // [d]
  bool fp32 = false;         // d_weight, else Element's
  bool accumulate = false;
  float* partial_sums = nullptr;  // [weight_slices(M),d]
};
template <class Element>
void launch_weight_gradient(const char* name, const WeightGradientParams& params, void* stream);

/// Into how many slices rows are cut for d_weight.
int weight_slices(std::int64_t M);

}  // namespace tandem::cuda::rms_norm
