// The fp64 definition of rms_norm_gemm and its gradients: the norm's rows, as plain as the formula,
// in front of projection's. Trusted as that is: tests/cpp/test_rms_norm_gemm_definition.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/element.h"
#include "reference/heads.h"
#include "reference/projection.h"
#include "reference/rms_norm.h"
#include "tandem/ops/rms_norm_gemm.h"

namespace tandem::reference {

/// A segment's product: a projection without activation.
inline ProjectionSegment product_of(const RmsNormGemmSegment& segment) {
  return {.weight = segment.weight,
          .bias = segment.bias,
          .head_width = segment.head_width,
          .out = segment.out};
}

/// What follows it in a row's heads.
inline HeadsOfRow heads_of_row(const RmsNormGemmForwardArgs& args, std::size_t segment,
                               std::int64_t row) {
  const RmsNormGemmSegment& one = args.segments[segment];
  return {args, one, one.head_eps.value_or(1e-6), row};
}

/// The rows of a call and their norm.
struct NormedRows {
  TensorView x;
  std::vector<double> weight;
  std::vector<double> rstd;  // of each row

  explicit NormedRows(const RmsNormGemmForwardArgs& args)
      : x(args.x), weight(read_vector(args.norm_weight)) {
    for (std::int64_t row = 0; row < x.shape[0]; ++row) {
      rstd.push_back(args.rstd ? element(args.rstd->dtype, args.rstd->data, row)
                               : rms_norm_rstd(input(row), args.eps.value_or(1e-6)));
    }
  }

  std::vector<double> input(std::int64_t row) const { return read_row(x, row, 0, x.shape[1]); }
  /// n, what the weights are multiplied with.
  std::vector<double> row(std::int64_t row) const {
    return rms_norm_row(input(row), rstd[row], weight);
  }
  /// What a row's dn gives to the gradients.
  RmsNormRowGradient gradient(std::int64_t row, const std::vector<double>& dn) const {
    return rms_norm_row_gradient(input(row), rstd[row], weight, dn);
  }
};

}  // namespace tandem::reference
