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

/// Four neighbouring 16-bit values of a row, in two words. why words: taken apart they would be
/// waited for where they are read.
struct PackedFour {
  uint2 words;

  template <class Element>
  __device__ void add_to(float (&values)[4]) const {
    struct Pair {
      Element first, second;
    };
    const auto low = __builtin_bit_cast(Pair, words.x), high = __builtin_bit_cast(Pair, words.y);
    values[0] += static_cast<float>(low.first);
    values[1] += static_cast<float>(low.second);
    values[2] += static_cast<float>(high.first);
    values[3] += static_cast<float>(high.second);
  }
};

/// Reads the first `count` of four; 0 behind them.
template <class Element>
__device__ PackedFour read_four(const Element* from, int count) {
  if (count >= 4 && reinterpret_cast<std::uintptr_t>(from) % sizeof(uint2) == 0) {
    return {*reinterpret_cast<const uint2*>(from)};
  }
  const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
  const auto at = [&](int i) { return i < count ? std::uint32_t{bits[i]} : 0u; };
  return {{at(0) | at(1) << 16, at(2) | at(3) << 16}};
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
