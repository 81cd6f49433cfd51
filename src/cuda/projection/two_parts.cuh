// projection_two_parts_kernel: z = x W^T in two parts of 16 bits (cuda/parts/two_parts.cuh), for
// what reads z next with more than 16 bits.
#pragma once

#include "cuda/parts/two_parts.cuh"
#include "cuda/projection/forward.cuh"

namespace tandem::cuda::projection {

template <class Element, int kColumns, int kParts>
__global__ __launch_bounds__(
    ForwardConfig<Element, kColumns, kParts>::kThreads,
    1) void projection_two_parts_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = ForwardConfig<Element, kColumns, kParts>;
  gemm::run_any<Config>(
      params, shared_memory,
      [&](const gemm::Fragment<Config::kColumns>& fragment, gemm::PanelStore<Config>& store) {
        const ForwardSegment& segment = params.segments[fragment.segment];
        // why not forward.cuh's write: read for each part, `columns` is a spill.
        const int columns = params.columns[fragment.segment];
        const int end = min(columns, fragment.column + params.tile_columns[fragment.segment]);
        gemm::write(segment.out, params.rows, columns, end, fragment, store);
#pragma unroll
        for (float& value : fragment.values) value = rest_of<Element>(value);
        gemm::write(segment.rest(), params.rows, columns, end, fragment, store);
      });
}

template <class Element, int kColumns, int kParts>
void launch_two_parts(const ForwardParams& params, int multiprocessors, void* stream) {
  gemm::launch_any<ForwardConfig<Element, kColumns, kParts>>(
      "projection_forward", projection_two_parts_kernel<Element, kColumns, kParts>, params,
      multiprocessors, stream);
}

}  // namespace tandem::cuda::projection
