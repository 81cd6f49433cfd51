// What gemm_swiglu's forward kernels receive.
#pragma once

#include "cuda/gemm/operands.h"
#include "cuda/gemm/target.h"
#include "ops/gemm_swiglu_problem.h"

namespace tandem::cuda::gemm_swiglu {

/// B's pair are the gate's weights and the others: half of a tile's columns each.
struct ForwardParams : gemm::PairedOperands {
  GateActivation activation = GateActivation::kSilu;
  gemm::Target out;
  gemm::Target gate_slope;  // both slopes or neither
  gemm::Target up_slope;
};

/// Launch gemm_swiglu_forward_kernel with tiles of kColumns products, half as many results, and
/// gemm_swiglu_few_rows_kernel with tiles of up to kRows rows and kColumns. Instantiated in
/// forward_instances.cuh.
template <class Element, int kColumns>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, int kRows, int kColumns>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream);

}  // namespace tandem::cuda::gemm_swiglu
