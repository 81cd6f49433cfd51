// An RMS or layer norm of rows as a pass of its own, and its backward. Instantiated in row_norm.cu.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"
#include "ops/rms_norm_problem.h"

namespace tandem::cuda::row_norm {

/// Rows x [M,d] and their norm: m weight + bias, with m = x rstd of an RMS norm and (x - mean) rstd
/// of a layer norm.
struct Rows {
  std::int64_t M = 0;
  int d = 0;
  MatrixTensor x;
  bool centers = false;         // layer norm
  WeightVector weight;          // [d]; null: 1
  WeightVector bias;            // [d], of a layer norm; null: 0
  double eps = 0;               // of the forward
  const float* mean = nullptr;  // [M], of a layer norm in its backward
  const float* rstd = nullptr;  // [M]: given, else computed with eps
};

inline Rows rows_of(std::int64_t M, int d, const MatrixTensor& x, const RmsNorm& norm) {
  Rows rows;
  rows.M = M;
  rows.d = d;
  rows.x = x;
  rows.weight = {norm.weight, norm.weight_dtype};
  rows.eps = norm.eps;
  rows.rstd = norm.rstd;
  return rows;
}

/// Whether the rows of all matrices begin at multiples of 16 bytes and have whole eights.
bool is_regular(const Rows& rows, std::initializer_list<MatrixTensor> others = {});

/// n, rounded once.
struct NormalizeParams : Rows {
  MatrixTensor n;              // null: only the statistics are wanted; may be x
  float* kept_mean = nullptr;  // [M] or null
  float* kept_rstd = nullptr;  // [M] or null
};
template <class Element>
void launch_normalize(const char* name, const NormalizeParams& params, void* stream);

/// With g = dn weight: dx = addend + rstd (g - m mean of g m), of a layer norm less rstd mean of g;
/// d_weight = sum over rows of dn m and d_bias = sum over rows of dn, or added to what is there.
struct GradientParams : Rows {
  MatrixTensor dn;      // null: 0
  MatrixTensor addend;  // null: 0
  MatrixTensor n;       // of an RMS norm, as its forward makes it; null: not wanted, as the next
                        // three; may be dn
  MatrixTensor dx;
  WeightVectorGradient d_weight;
  WeightVectorGradient d_bias;
  bool accumulate = false;
  /// [2,most_slices(M, d),d] where d_bias is wanted, [1,...] where d_weight alone is.
  float* partial_sums = nullptr;
};
template <class Element>
void launch_gradient(const char* name, const GradientParams& params, void* stream);

/// Into how many slices rows are cut at most for sums over them.
int most_slices(std::int64_t M, int d);

}  // namespace tandem::cuda::row_norm
