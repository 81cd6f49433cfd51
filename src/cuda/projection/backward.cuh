// The matrix products of projection's backward: the GEMM main loop with two epilogues.
//
//   kernel  layout                                     result
//   input   dz [M,columns], W [columns,d]: kNN, a term per segment      dx
//   weight  x [M,d], dz [M,columns]: kTN, a segment of columns each     d_weight, transposed
//
// Of tiles in parts a kernel more, *_sums, adds the parts up. The weight's may run beside the
// input's, which it needs nothing of (gemm/operands.h).
#pragma once

#include "cuda/gemm/split.cuh"
#include "cuda/gemm/tail.cuh"
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
        if (fragment.place >= 0) return gemm::store_part<Config>(params, fragment);
        gemm::write(params.dx, params.rows, params.columns[0], params.columns[0], fragment, store);
      });
}

template <class Element, int kColumns>
__global__ __launch_bounds__(gemm::kSumThreads) void projection_input_sums_kernel(
    const __grid_constant__ InputParams params) {
  follow_stream();
  gemm::sum_tail<InputConfig<Element, kColumns, 1>>(
      params, [&](const float(&values)[4], int row, int, int column) {
        const auto to = gemm::row_target<Element, 2>(params.dx, column, params.columns[0] - column);
#pragma unroll
        for (int half = 0; half < 2; ++half, row += 8) {
          if (row >= params.rows) return;
          gemm::write<Element>(to, row, {values[2 * half], values[2 * half + 1]});
        }
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
        if (fragment.place >= 0) return gemm::store_part<Config>(params, fragment);
        const gemm::Target& result = params.results[fragment.segment];
        const int columns = params.columns[fragment.segment];
        const MatrixTensor& to = result.matrix;
        if (result.by_tma) {
          store.template store_all_transposed<Element>(result.map, columns, fragment);
        } else if (result.fp32) {
          store_transposed(fragment, params.rows, columns, params.accumulate,
                           static_cast<float*>(to.data), to.row_stride);
        } else {
          store_transposed(fragment, params.rows, columns, params.accumulate,
                           static_cast<Element*>(to.data), to.row_stride);
        }
      });
}

template <class Element, int kColumns>
__global__ __launch_bounds__(gemm::kSumThreads) void projection_weight_sums_kernel(
    const __grid_constant__ WeightParams params) {
  follow_stream();
  gemm::sum_tail<WeightConfig<Element, kColumns, 1>>(
      params, [&](const float(&values)[4], int row, int segment, int column) {
        const gemm::Target& result = params.results[segment];
        const auto put = [&](auto* to) {
          using Stored = std::remove_pointer_t<decltype(to)>;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row_of = row + i / 2 * 8, column_of = column + i % 2;
            if (row_of >= params.rows || column_of >= params.columns[segment]) continue;
            Stored& sum = to[column_of * result.matrix.row_stride + row_of];
            const float before = params.accumulate ? static_cast<float>(sum) : 0.0f;
            sum = static_cast<Stored>(before + values[i]);
          }
        };
        if (result.fp32) {
          put(static_cast<float*>(result.matrix.data));
        } else {
          put(static_cast<Element*>(result.matrix.data));
        }
      });
}

template <class Element, int kColumns, int kParts>
void launch_input(const InputParams& params, int multiprocessors, void* stream) {
  constexpr const char* kName = "projection_backward";
  gemm::launch_any<InputConfig<Element, kColumns, kParts>>(
      kName, projection_input_kernel<Element, kColumns, kParts>, params, multiprocessors, stream);
  if constexpr (kParts == 1) {
    gemm::launch_tail_sums<InputConfig<Element, kColumns, 1>>(
        kName, projection_input_sums_kernel<Element, kColumns>, params, stream);
  }
}

template <class Element, int kColumns, int kParts>
void launch_weight(const WeightParams& params, int multiprocessors, void* stream) {
  constexpr const char* kName = "projection_backward";
  gemm::launch_any<WeightConfig<Element, kColumns, kParts>>(
      kName, projection_weight_kernel<Element, kColumns, kParts>, params, multiprocessors, stream);
  if constexpr (kParts == 1) {
    gemm::launch_tail_sums<WeightConfig<Element, kColumns, 1>>(
        kName, projection_weight_sums_kernel<Element, kColumns>, params, stream);
  }
}

}  // namespace tandem::cuda::projection
