// A bias added to products before they are written.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/few_rows.cuh"

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

/// The same of a lane's columns of a row.
template <class Bias>
__device__ void add_bias(const Bias* bias, int columns, const RowPiece& piece) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = piece.column + i;
    if (column < columns) piece.values[i] += static_cast<float>(bias[column]);
  }
}

/// The same of a bias in fp32 or Element, or of none.
template <class Element, class Products>
__device__ void add_bias(const void* bias, bool fp32, int columns, const Products& products) {
  if (bias == nullptr) return;
  if (fp32) {
    add_bias(static_cast<const float*>(bias), columns, products);
  } else {
    add_bias(static_cast<const Element*>(bias), columns, products);
  }
}

}  // namespace tandem::cuda::gemm
