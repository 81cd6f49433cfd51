// What gated_output's products receive.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/gemm/operands.h"
#include "cuda/gemm/target.h"
#include "ops/gated_output_problem.h"

namespace tandem::cuda::gated_output {

/// sum = residual + a W^T + bias. The residual is the addend, of few rows a matrix.
struct ForwardParams : gemm::Operands<> {
  gemm::Addend addend{};
  MatrixTensor residual;
  WeightVector bias;
  gemm::Target sum;
};

/// Launch gated_output_forward_kernel with tiles of kColumns, and gated_output_few_rows_kernel for
/// up to kRows rows. Instantiated in forward_instances.cuh.
template <class Element, int kColumns>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, int kRows>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream);

}  // namespace tandem::cuda::gated_output
