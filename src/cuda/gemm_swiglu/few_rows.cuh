// gemm_swiglu_few_rows_kernel: gemm_swiglu's forward of few rows (gemm/few_rows.cuh).
#pragma once

#include "cuda/gemm/few_rows.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/gemm_swiglu/activations.cuh"
#include "cuda/gemm_swiglu/forward_params.h"

namespace tandem::cuda::gemm_swiglu {

/// Makes and writes results before `end`, the tile's last column: the warp's first half has the
/// gate's products, the second the others.
template <class Element>
__device__ void finish(const ForwardParams& params, int end, const gemm::RowPiece& piece) {
  float up[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) up[i] = __shfl_down_sync(0xFFFFFFFFu, piece.values[i], 16);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int count = lane < 16 ? end - piece.column : 0;
  if (count <= 0) return;
  with_activation(params.activation, [&](auto activation) {
    float gate_slope[4], up_slope[4], out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Gate f = activate<decltype(activation)::value>(piece.values[i]);
      gate_slope[i] = f.slope * up[i];
      up_slope[i] = f.value;
      out[i] = f.value * up[i];
    }
    if (params.gate_slope.matrix.data != nullptr) {
      gemm::write<Element>(params.gate_slope, piece, count, gate_slope);
      gemm::write<Element>(params.up_slope, piece, count, up_slope);
    }
    gemm::write<Element>(params.out, piece, count, out);
  });
}

template <class Element, int kRows>
__global__ __launch_bounds__(
    gemm::FewRowsConfig<Element, kRows>::kThreads,
    gemm::FewRowsConfig<Element, kRows>::
        kCtas) void gemm_swiglu_few_rows_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = gemm::FewRowsConfig<Element, kRows>;
  auto& shared = *reinterpret_cast<gemm::FewRowsShared<Config>*>(shared_memory);
  gemm::run_few_rows<Config>(params, shared, [&](const gemm::FewRowsTile& tile) {
    const int end = min(tile.column + params.tile_columns[0], params.columns[0]);
    return [&params, end](const gemm::RowPiece& piece) { finish<Element>(params, end, piece); };
  });
}

template <class Element, int kRows>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream) {
  const gemm::FewRowsShape shape = gemm::few_rows_shape(kRows, params.rows, params.tiles_before[1],
                                                        params.depth[0], multiprocessors);
  gemm::launch_few_rows<gemm::FewRowsConfig<Element, kRows>>(
      "gemm_swiglu_forward", gemm_swiglu_few_rows_kernel<Element, kRows>, params, shape, stream);
}

}  // namespace tandem::cuda::gemm_swiglu
