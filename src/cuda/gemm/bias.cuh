// A bias added to products before they are written.
#pragma once

#include "cuda/gemm/epilogue.cuh"

namespace tandem::cuda::gemm {

/// Adds the bias of a fragment's columns, of a result of so many.
template <class Bias, int kColumns>
__device__ void add_bias(const Bias* bias, int columns, const Fragment<kColumns>& fragment) {
  const int first = fragment.column + fragment_column(0);
  const Bias* from = bias + first;
  const int left = columns - first;
#pragma unroll
  for (int block = 0; block < kColumns / 8; ++block) {
    float* values = fragment.values + 4 * block;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float b = 8 * block + i < left ? static_cast<float>(from[8 * block + i]) : 0.0f;
      values[i] += b;
      values[i + 2] += b;
    }
  }
}

/// The same of a bias in fp32 or Element, or of none.
template <class Element, int kColumns>
__device__ void add_bias(const void* bias, bool fp32, int columns,
                         const Fragment<kColumns>& fragment) {
  if (bias == nullptr) return;
  if (fp32) {
    add_bias(static_cast<const float*>(bias), columns, fragment);
  } else {
    add_bias(static_cast<const Element*>(bias), columns, fragment);
  }
}

/// The bias of a thread's four columns of a row (gemm/few_rows.cuh), in fp32 or Element, or of
/// none.
struct RowBias {
  float values[4] = {};

  __device__ void add_to(float (&row)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i] += values[i];
  }
};
template <class Element>
__device__ RowBias load_row_bias(const void* bias, bool fp32, int columns, int first) {
  RowBias loaded;
  if (bias == nullptr) return loaded;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = first + i;
    if (column >= columns) continue;
    loaded.values[i] = fp32 ? static_cast<const float*>(bias)[column]
                            : static_cast<float>(static_cast<const Element*>(bias)[column]);
  }
  return loaded;
}

}  // namespace tandem::cuda::gemm
