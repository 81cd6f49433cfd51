// gated_output_few_rows_kernel: gated_output's product of few rows (gemm/few_rows.cuh).
#pragma once

#include "cuda/gated_output/forward_params.h"
#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/few_rows.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/row_norm/row.cuh"

namespace tandem::cuda::gated_output {

template <class Element, int kRows>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows>::kThreads,
    gemm::FewRowsConfig<Element, kRows>::
        kCtas) void gated_output_few_rows_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  const int columns = params.columns[0];
  gemm::run_few_rows<Config>(params, shared, [&](const gemm::FewRowsTile& tile) {
    const gemm::RowBias bias = gemm::load_row_bias<Element>(
        params.bias.data, params.bias.dtype == DType::kFloat32, columns, tile.thread_column);
    const int end = min(tile.column + params.tile_columns[0], columns);
    return [&params, end, bias](const gemm::RowPiece& piece) {
      const int count = end - piece.column;
      if (count <= 0) return;
      bias.add_to(piece.values);
      if (params.residual.data != nullptr) {
        const Element* residual = row_of<const Element>(params.residual, piece.row) + piece.column;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < count) piece.values[i] += static_cast<float>(residual[i]);
        }
      }
      gemm::write<Element>(params.sum, piece, count, piece.values);
    };
  });
}

template <class Element, int kRows>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream) {
  const gemm::FewRowsShape shape = gemm::few_rows_shape(kRows, params.rows, params.tiles_before[1],
                                                        params.depth[0], multiprocessors);
  gemm::launch_few_rows<gemm::FewRowsConfig<Element, kRows>>(
      "gated_output_forward", gated_output_few_rows_kernel<Element, kRows>, params, shape, stream);
}

}  // namespace tandem::cuda::gated_output
