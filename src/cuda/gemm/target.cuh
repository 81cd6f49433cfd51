// Writing what an epilogue has made to its target.
#pragma once

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/few_rows.cuh"
#include "cuda/gemm/target.h"

namespace tandem::cuda::gemm {

/// Writes a fragment's values that lie before `rows` and `end`, its tile's last column, of a result
/// of so many columns.
template <class Config, int kColumns>
__device__ void write(const Target& to, int rows, int columns, int end,
                      const Fragment<kColumns>& fragment, PanelStore<Config>& store) {
  using Element = typename Config::Element;
  const auto row_at = [&](int row) {
    return static_cast<Element*>(to.matrix.data) + row * to.matrix.row_stride;
  };
  if (to.by_tma) {
    store.template store_all<Element>(to.map, columns, fragment);
    constexpr int kTail = kColumns % 64, kBefore = kColumns - kTail;  // less than a panel's
    if constexpr (kTail > 0) {
      store_fragment<Element>(
          Fragment<kTail>{reinterpret_cast<float(&)[kTail / 2]>(fragment.values[kBefore / 2]),
                          fragment.row, fragment.segment, fragment.column + kBefore,
                          fragment.outer},
          rows, end, row_at);
    }
  } else if (to.fp32) {
    store_fragment<float>(fragment, rows, end, [&](int row) {
      return static_cast<float*>(to.matrix.data) + row * to.matrix.row_stride;
    });
  } else {
    store_fragment<Element>(fragment, rows, end, row_at);
  }
}

/// Writes the first `count` of four neighbouring values.
template <class Stored>
__device__ void write_four(Stored* to, int count, const float (&values)[4]) {
  struct alignas(4 * sizeof(Stored)) Four {
    Stored values[4];
  };
  if (count >= 4 && reinterpret_cast<std::uintptr_t>(to) % sizeof(Four) == 0) {
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.values[i] = static_cast<Stored>(values[i]);
    *reinterpret_cast<Four*>(to) = four;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) to[i] = static_cast<Stored>(values[i]);
    }
  }
}

/// Where rows of few go: a Target without its map.
struct RowTarget {
  MatrixTensor matrix;
  std::int64_t fp32 = 0;  // as wide as a pointer, so that all of it are words (in_registers)

  RowTarget() = default;
  __device__ RowTarget(const Target& to) : matrix(to.matrix), fp32(to.fp32) {}
};

/// Writes a thread's values of a row, of which `count` lie in the tile and in the result.
template <class Element>
__device__ void write(const RowTarget& to, const RowPiece& piece, int count,
                      const float (&values)[4]) {
  const std::int64_t at = piece.row * to.matrix.row_stride + piece.column;
  if (to.fp32) {
    write_four(static_cast<float*>(to.matrix.data) + at, count, values);
  } else {
    write_four(static_cast<Element*>(to.matrix.data) + at, count, values);
  }
}

}  // namespace tandem::cuda::gemm
