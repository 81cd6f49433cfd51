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
template <class Element, int kColumns, int kParts>
using WeightConfig = gemm::Config<Element, gemm::Layout::kTN, kColumns, false, kParts>;

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

/// Stores or adds a fragment's elements inside of the result, which lies transposed at `to`:
/// neighbouring lanes have neighbouring rows, which lie side by side there.
template <bool kAccumulate, class Stored, int kColumns>
__device__ void store_transposed(const gemm::Fragment<kColumns>& fragment, int rows, int columns,
                                 Stored* to, std::int64_t stride) {
  const int row = fragment.row + fragment_row();
  const int column = fragment.column + fragment_column(0);
  const int left = columns - column;
  const bool exists[2] = {row < rows, row + 8 < rows};
  Stored* at = to + column * stride + row;
#pragma unroll
  for (int block = 0; block < kColumns / 8; ++block, at += 8 * stride) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * block + i % 2 >= left || !exists[i / 2]) continue;
      Stored& sum = at[i % 2 * stride + i / 2 * 8];
      const float before = kAccumulate ? static_cast<float>(sum) : 0.0f;
      sum = static_cast<Stored>(before + fragment.values[4 * block + i]);
    }
  }
}
template <class Stored, int kColumns>
__device__ void store_transposed(const gemm::Fragment<kColumns>& fragment, int rows, int columns,
                                 bool accumulate, Stored* to, std::int64_t stride) {
  if (accumulate) {
    store_transposed<true>(fragment, rows, columns, to, stride);
  } else {
    store_transposed<false>(fragment, rows, columns, to, stride);
  }
}

template <class Element, int kColumns, int kParts>
__global__ __launch_bounds__(
    WeightConfig<Element, kColumns, kParts>::kThreads,
    1) void projection_weight_kernel(const __grid_constant__ WeightParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  using Config = WeightConfig<Element, kColumns, kParts>;
  gemm::run_any<Config>(
      params, shared_memory,
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

template <class Element, int kColumns, int kParts>
void launch_weight(const WeightParams& params, int multiprocessors, void* stream) {
  gemm::launch_any<WeightConfig<Element, kColumns, kParts>>(
      "projection_backward", projection_weight_kernel<Element, kColumns, kParts>, params,
      multiprocessors, stream);
}

}  // namespace tandem::cuda::projection
