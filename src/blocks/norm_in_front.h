// The backward of the RMS norm in front of a block that has it as a pass of its own: n again, and
// the gradients through it.
#pragma once

#include <optional>

#include "ops/rms_norm.h"
#include "tandem/tensor.h"

namespace tandem {

/// Matrices are [M,d], contiguous, of one dtype.
struct NormInFront {
  TensorView x;
  TensorView weight;  // [d]
  TensorView rstd;    // [M], as the forward kept it
  TensorView n;       // out of again()
  TensorView dn;
  TensorView d_residual;  // what reaches x beside n
  std::optional<TensorView> dx, d_weight;
  bool accumulate = false;  // d_weight is added to what is there

  RmsNormForwardProblem again() const {
    return {.dtype = x.dtype,
            .device = x.device,
            .M = x.shape[0],
            .d = static_cast<int>(x.shape[1]),
            .x = rows(x),
            .norm = given(),
            .n = rows(n)};
  }

  RmsNormBackwardProblem gradient() const {
    RmsNormBackwardProblem made = {.dtype = x.dtype,
                                   .device = x.device,
                                   .M = x.shape[0],
                                   .d = static_cast<int>(x.shape[1]),
                                   .x = rows(x),
                                   .norm = given(),
                                   .dn = rows(dn),
                                   .addend = rows(d_residual),
                                   .accumulate = accumulate};
    if (dx) made.dx = {dx->data, x.shape[1]};
    if (d_weight) made.d_weight = {d_weight->data, d_weight->dtype};
    return made;
  }

 private:
  static MatrixTensor rows(const TensorView& view) { return {view.data, view.shape[1]}; }
  RmsNorm given() const {
    return {weight.data, weight.dtype, 0, static_cast<const float*>(rstd.data)};
  }
};

}  // namespace tandem
