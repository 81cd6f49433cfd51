// gemm_swiglu_few_rows_kernel: gemm_swiglu's forward of few rows (gemm/few_rows.cuh).
#pragma once

#include "cuda/gemm/few_rows.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/gemm_swiglu/activations.cuh"
#include "cuda/gemm_swiglu/forward_params.h"

namespace tandem::cuda::gemm_swiglu {

/// Makes and writes the results of rows that a thread finishes, two columns of each.
template <class Element>
class GateRows {
 public:
  __device__ GateRows(const ForwardParams& params, const gemm::FewRowsTile& tile)
      : activation_(params.activation) {
    const int column = tile.thread_column;
    const int count = min(tile.column + params.tile_columns[0], params.columns[0]) - column;
    out_ = gemm::row_target<Element, 2>(params.out, column, count);
    gate_slope_ = gemm::row_target<Element, 2>(params.gate_slope, column, count);
    up_slope_ = gemm::row_target<Element, 2>(params.up_slope, column, count);
  }

  /// why the activation is known before the rows: branches of a row take longer than its values.
  template <class Rows>
  __device__ void finish(const Rows& rows) const {
    with_activation(activation_, [&](auto activation) {
      rows.each([&](const gemm::RowPiece& piece) { gate<decltype(activation)::value>(piece); });
    });
  }

 private:
  template <GateActivation kActivation>
  __device__ void gate(const gemm::RowPiece& piece) const {
    float gate_slope[2], up_slope[2], out[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Gate f = activate<kActivation>(piece.values[i]);
      const float up = piece.values[2 + i];
      gate_slope[i] = f.slope * up;
      up_slope[i] = f.value;
      out[i] = f.value * up;
    }
    if (gate_slope_.columns != nullptr) {
      gemm::write<Element>(gate_slope_, piece.row, gate_slope);
      gemm::write<Element>(up_slope_, piece.row, up_slope);
    }
    gemm::write<Element>(out_, piece.row, out);
  }

  GateActivation activation_;
  gemm::RowTarget out_;
  gemm::RowTarget gate_slope_;  // both slopes or neither
  gemm::RowTarget up_slope_;
};

template <class Element, int kRows, int kColumns>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows, kColumns>::kThreads,
    gemm::FewRowsConfig<Element, kRows, kColumns>::
        kCtas) void gemm_swiglu_few_rows_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows, kColumns>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  gemm::run_few_rows<Config>(params, shared, [&](const gemm::FewRowsTile& tile) {
    return GateRows<Element>(params, tile);
  });
}

template <class Element, int kRows, int kColumns>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream) {
  const gemm::FewRowsShape shape = gemm::few_rows_shape(kRows, params.rows, params.tiles_before[1],
                                                        params.depth[0], multiprocessors);
  gemm::launch_few_rows<gemm::FewRowsConfig<Element, kRows, kColumns>>(
      "gemm_swiglu_forward", gemm_swiglu_few_rows_kernel<Element, kRows, kColumns>, params, shape,
      stream);
}

}  // namespace tandem::cuda::gemm_swiglu
