// gated_output_forward_kernel: residual + a W^T + bias by one GEMM main loop. The residual's tile
// comes behind the steps of the product, and is there when they end.
//
// Numerics: products and sums are fp32; the sum is rounded once. Floor: 2 M d_in d flops.
#pragma once

#include "cuda/gated_output/forward_params.h"
#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/split.cuh"
#include "cuda/gemm/target.cuh"

namespace tandem::cuda::gated_output {

template <class Element, int kColumns, int kParts>
using ForwardConfig = gemm::Config<Element, gemm::Layout::kNT, kColumns, false, kParts>;

template <class Element, int kColumns, int kParts>
__global__ __launch_bounds__(
    ForwardConfig<Element, kColumns, kParts>::kThreads,
    1) void gated_output_forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ForwardConfig<Element, kColumns, kParts>;
  const int columns = params.columns[0];
  gemm::run_any<Config>(
      params, shared_memory,
      [&](const gemm::Fragment<kColumns>& fragment, gemm::PanelStore<Config>& store) {
        gemm::add_bias<Element>(params.bias.data, params.bias.dtype == DType::kFloat32, columns,
                                fragment);
        gemm::write(params.sum, params.rows, columns, columns, fragment, store);
      });
}

template <class Element, int kColumns, int kParts>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream) {
  gemm::launch_any<ForwardConfig<Element, kColumns, kParts>>(
      "gated_output_forward", gated_output_forward_kernel<Element, kColumns, kParts>, params,
      multiprocessors, stream);
}

}  // namespace tandem::cuda::gated_output
