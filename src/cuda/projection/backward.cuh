// The matrix products of projection's backward: the GEMM main loop with two epilogues.
//
//   kernel  layout                                     result
//   input   dz [M,columns], W [columns,d]: kNN, a term per segment      dx
//   weight  x [M,d], dz [M,columns]: kTN, a segment of columns each     d_weight, transposed
#pragma once

#include "cuda/gemm/split.cuh"
#include "cuda/gemm/target.cuh"
#include "cuda/projection/elementwise.cuh"

namespace tandem::cuda::projection {

template <class Element, int kColumns, int kParts>
using InputConfig = gemm::Config<Element, gemm::Layout::kNN, kColumns, false, kParts>;
template <class Element, int kColumns>
using WeightConfig = gemm::Config<Element, gemm::Layout::kTN, kColumns>;

template <class Element, int kColumns, int kParts>
__global__ __launch_bounds__(
    InputConfig<Element, kColumns, kParts>::kThreads,
    1) void projection_input_kernel(const __grid_constant__ InputParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = InputConfig<Element, kColumns, kParts>;
  gemm::run_any<Config>(
      params, shared_memory,
      [&](const gemm::Fragment<Config::kColumns>& fragment, gemm::PanelStore<Config>& store) {
        gemm::write(params.dx, params.rows, params.columns[0], params.columns[0], fragment, store);
      });
}

/// Stores or adds a fragment's elements inside of the result, which lies transposed at `to`. why
/// columns first: neighbouring lanes then have neighbouring rows, which lie side by side there.
template <class Stored, int kColumns>
__device__ void store_transposed(const gemm::Fragment<kColumns>& fragment, int rows, int columns,
                                 bool accumulate, Stored* to, std::int64_t stride) {
  const int row = fragment.row + fragment_row();
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int at = row + i % 4 / 2 * 8;
    const int column = fragment.column + fragment_column(i / 4) + i % 2;
    if (at >= rows || column >= columns) continue;
    Stored& sum = to[column * stride + at];
    sum = static_cast<Stored>((accumulate ? static_cast<float>(sum) : 0.0f) + fragment.values[i]);
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
        const gemm::Target& result = params.results[fragment.segment];
        const int columns = params.columns[fragment.segment];
        const MatrixTensor& to = result.matrix;
        if (result.by_tma) {
          store.template store_all_transposed<Element>(result.map, columns, fragment);
        } else if (result.fp32) {
          const std::int64_t slice = std::int64_t{fragment.outer} * columns * to.row_stride;
          store_transposed(fragment, params.rows, columns, params.accumulate,
                           static_cast<float*>(to.data) + slice, to.row_stride);
        } else {
          store_transposed(fragment, params.rows, columns, params.accumulate,
                           static_cast<Element*>(to.data), to.row_stride);
        }
      });
}

template <class Element, int kColumns, int kParts>
void launch_input(const InputParams& params, int multiprocessors, void* stream) {
  gemm::launch_any<InputConfig<Element, kColumns, kParts>>(
      "projection_backward", projection_input_kernel<Element, kColumns, kParts>, params,
      multiprocessors, stream);
}

template <class Element, int kColumns>
void launch_weight(const WeightParams& params, int multiprocessors, void* stream) {
  gemm::launch<WeightConfig<Element, kColumns>>("projection_backward",
                                                projection_weight_kernel<Element, kColumns>, params,
                                                multiprocessors, stream);
}

}  // namespace tandem::cuda::projection
