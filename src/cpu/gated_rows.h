// The gate and the group norm of gated_output on the CPU: a, and the gradients behind d_a. In fp32;
// where the dtype is fp64 all of it is fp64.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"
#include "tandem/tensor.h"

namespace tandem::cpu {

/// Where a group norm's 1 / sqrt(mean of y^2 + eps) come from.
struct GroupRstd {
  MatrixTensor given = {};  // [M,groups]; null: computed
  double eps = 0;
  MatrixTensor kept = {};  // [M,groups], takes them; or null
};

/// Computes a [M,d_in], rounded once. A row's bits do not depend on other rows.
void gated_rows_forward(DType dtype, std::int64_t M, int d_in, const GatedRows& rows,
                        const GroupRstd& group_rstd, const MatrixTensor& a);

/// Computes d_o, d_gate and d_group_norm_weight, those of them that the problem wants, from d_a
/// [M,d_in]. The sum has one order, whatever the number of threads.
void gated_rows_backward(const GatedOutputBackwardProblem& problem, const MatrixTensor& d_a);

}  // namespace tandem::cpu
