// The matrix products of projection's backward: the GEMM main loop with two epilogues.
//
//   kernel  layout                                     result
//   input   dz [M,columns], W [columns,d]: kNN, a term per segment      dx
//   weight  x [M,d], dz [M,columns]: kTN, a segment of columns each     d_weight, transposed
#pragma once

#include "cuda/gemm/loop.cuh"
#include "cuda/projection/elementwise.cuh"

namespace tandem::cuda::projection {

template <class Element, int kColumns>
using InputConfig = gemm::Config<Element, gemm::Layout::kNN, kColumns>;
template <class Element, int kColumns>
using WeightConfig = gemm::Config<Element, gemm::Layout::kTN, kColumns>;

template <class Element, int kColumns>
__global__ __launch_bounds__(
    InputConfig<Element, kColumns>::kThreads,
    1) void projection_input_kernel(const __grid_constant__ InputParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = InputConfig<Element, kColumns>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  gemm::run<Config>(
      params, shared,
      [&](const gemm::Fragment<Config::kColumns>& fragment, gemm::PanelStore<Config>& store) {
        if (params.by_tma) {
          store.template store_all<Element>(params.dx_map, params.columns[0], fragment);
        } else {
          gemm::store_fragment<Element>(fragment, params.rows, params.columns[0], [&](int row) {
            return static_cast<Element*>(params.dx.data) + row * params.dx.row_stride;
          });
        }
      });
}

/// Calls one(column, row, value) for a fragment's elements inside of the result. why columns first:
/// neighbouring lanes then have neighbouring rows, which lie side by side in the transpose.
template <int kColumns, class One>
__device__ void for_each_element(const gemm::Fragment<kColumns>& fragment, int rows, int columns,
                                 One one) {
  const int row = fragment.row + fragment_row();
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int at = row + i % 4 / 2 * 8;
    const int column = fragment.column + fragment_column(i / 4) + i % 2;
    if (at < rows && column < columns) one(column, at, fragment.values[i]);
  }
}

template <class Element, int kColumns>
__global__ __launch_bounds__(
    WeightConfig<Element, kColumns>::kThreads,
    1) void projection_weight_kernel(const __grid_constant__ WeightParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = WeightConfig<Element, kColumns>;
  auto& shared = *reinterpret_cast<gemm::Shared<Config>*>(shared_memory);
  gemm::run<Config>(
      params, shared,
      [&](const gemm::Fragment<Config::kColumns>& fragment, gemm::PanelStore<Config>& store) {
        const WeightSegment& segment = params.segments[fragment.segment];
        const int columns = params.columns[fragment.segment];
        const std::int64_t stride = segment.d_weight.row_stride;
        if (segment.by_tma) {
          store.template store_all_transposed<Element>(segment.map, columns, fragment);
        } else if (segment.partial_sums != nullptr) {
          const std::int64_t begin = std::int64_t{fragment.outer} * columns;
          for_each_element(fragment, params.rows, columns, [&](int column, int row, float value) {
            segment.partial_sums[(begin + column) * params.rows + row] = value;
          });
        } else if (segment.fp32) {
          float* to = static_cast<float*>(segment.d_weight.data);
          for_each_element(fragment, params.rows, columns, [&](int column, int row, float value) {
            float& at = to[column * stride + row];
            at = params.accumulate ? at + value : value;
          });
        } else {
          Element* to = static_cast<Element*>(segment.d_weight.data);
          for_each_element(fragment, params.rows, columns, [&](int column, int row, float value) {
            Element& at = to[column * stride + row];
            const float before = params.accumulate ? static_cast<float>(at) : 0.0f;
            at = static_cast<Element>(before + value);
          });
        }
      });
}

template <class Element, int kColumns>
void launch_input(const InputParams& params, int multiprocessors, void* stream) {
  gemm::launch<InputConfig<Element, kColumns>>("projection_backward",
                                               projection_input_kernel<Element, kColumns>, params,
                                               multiprocessors, stream);
}

template <class Element, int kColumns>
void launch_weight(const WeightParams& params, int multiprocessors, void* stream) {
  gemm::launch<WeightConfig<Element, kColumns>>("projection_backward",
                                                projection_weight_kernel<Element, kColumns>, params,
                                                multiprocessors, stream);
}

}  // namespace tandem::cuda::projection
