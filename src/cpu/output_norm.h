// The norm behind gated_output's product on the CPU, over rows of the sum. In fp32; where the dtype
// is fp64 all of it is fp64.
#pragma once

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"

namespace tandem::cpu {

/// Computes out, mean and rstd, those of them that the problem wants, from `sum` [M,d], which may
/// be out itself. A row's bits do not depend on other rows.
void output_norm_forward(const GatedOutputForwardProblem& problem, const MatrixTensor& sum);

/// Computes d_residual [M,d], d_norm_weight and d_norm_bias, where they are not null. The sums have
/// one order, whatever the number of threads.
void output_norm_backward(const GatedOutputBackwardProblem& problem,
                          const MatrixTensor& d_residual);

}  // namespace tandem::cpu
