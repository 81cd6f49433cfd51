// gated_output_few_rows_kernel: gated_output's product of few rows (gemm/few_rows.cuh).
#pragma once

#include "cuda/gated_output/forward_params.h"
#include "cuda/gemm/bias.cuh"
#include "cuda/gemm/few_rows.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/row_norm/row.cuh"

namespace tandem::cuda::gated_output {

/// Adds bias and residual to the four columns of rows that a thread finishes, and writes them. The
/// residual is read before the products. why: behind them each row would wait for device memory.
template <class Element, int kRows>
class SumRows {
 public:
  __device__ SumRows(const ForwardParams& params, const gemm::FewRowsTile& tile)
      : adds_residual_(params.residual.data != nullptr) {
    const int columns = params.columns[0], column = tile.thread_column;
    const int count = min(tile.column + params.tile_columns[0], columns) - column;
    sum_ = gemm::row_target<Element>(params.sum, column, count);
    bias_ = gemm::load_row_bias<Element>(params.bias.data, params.bias.dtype == DType::kFloat32,
                                         columns, column);
    if (!adds_residual_ || count <= 0) return;
#pragma unroll
    for (int i = 0; i < kHeldRows; ++i) {
      // why not only of rows in the tile: as many conditions would stay in registers as well.
      const int row = min(tile.thread_row + i * tile.next_row, tile.rows - 1);
      const Element* from = row_of<const Element>(params.residual, tile.row + row) + column;
      residual_[i] = gemm::read_four(from, count);
    }
  }

  template <class Rows>
  __device__ void finish(const Rows& rows) const {
    if (sum_.count == 0) return;
    rows.each_counted([&](const gemm::RowPiece& piece, int i) {
      bias_.add_to(piece.values);
      if (adds_residual_) residual_[i].template add_to<Element>(piece.values);
      gemm::write<Element>(sum_, piece.row, piece.values);
    });
  }

 private:
  static constexpr int kHeldRows = gemm::FewRowsConfig<Element, kRows>::kGroups;

  bool adds_residual_;
  gemm::RowTarget sum_;
  gemm::RowBias bias_;
  gemm::PackedFour residual_[kHeldRows];
};

template <class Element, int kRows>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows>::kThreads,
    gemm::FewRowsConfig<Element, kRows>::
        kCtas) void gated_output_few_rows_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  gemm::run_few_rows<Config>(params, shared, [&](const gemm::FewRowsTile& tile) {
    return SumRows<Element, kRows>(params, tile);
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
