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
  if (to.by_tma) {
    store.template store_all<Element>(to.map, columns, fragment);
  } else if (to.fp32) {
    store_fragment<float>(fragment, rows, end, [&](int row) {
      return static_cast<float*>(to.matrix.data) + row * to.matrix.row_stride;
    });
  } else {
    store_fragment<Element>(fragment, rows, end, [&](int row) {
      return static_cast<Element*>(to.matrix.data) + row * to.matrix.row_stride;
    });
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

/// Where a thread's neighbouring columns of rows of few go. why made before the rows: what is left
/// for each is an address and a store.
struct RowTarget {
  char* columns = nullptr;  // of row 0; null: nowhere
  std::int64_t row_bytes = 0;
  std::int16_t count = 0;  // of the columns, those in the tile and in the result
  bool fp32 = false;
  bool whole = false;  // all of them, which can be stored at once
  int padding = 0;     // so that all of it is words (in_registers)
};

/// Of kColumns columns from `column` on, of which up to `count` lie in the tile and in the result.
template <class Element, int kColumns = 4>
__device__ RowTarget row_target(const Target& to, int column, int count) {
  RowTarget of;
  if (to.matrix.data == nullptr) return of;
  const int size = to.fp32 ? sizeof(float) : sizeof(Element);
  of.columns = static_cast<char*>(to.matrix.data) + std::int64_t{column} * size;
  of.row_bytes = to.matrix.row_stride * size;
  of.count = static_cast<std::int16_t>(max(min(count, kColumns), 0));
  of.fp32 = to.fp32;
  // why by a mask: a division by what only the device knows takes it a hundred instructions.
  const std::int64_t misplaced =
      (reinterpret_cast<std::int64_t>(of.columns) | of.row_bytes) & (kColumns * size - 1);
  // why not by of.count: ptxas 13.0 takes a wrong predicate of the instruction that clamps.
  of.whole = count >= kColumns && misplaced == 0;
  return of;
}

template <class Stored, int kColumns>
__device__ void write_columns(Stored* to, const RowTarget& target,
                              const float (&values)[kColumns]) {
  struct alignas(kColumns * sizeof(Stored)) Columns {
    Stored values[kColumns];
  };
  // why said: the address, kept in registers, has lost it, and stores would wait for shared memory.
  __builtin_assume(__isGlobal(to));
  if (target.whole) {
    Columns columns;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) columns.values[i] = static_cast<Stored>(values[i]);
    *reinterpret_cast<Columns*>(to) = columns;
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (i < target.count) to[i] = static_cast<Stored>(values[i]);
    }
  }
}

/// Writes a thread's values of a row.
template <class Element, int kColumns>
__device__ void write(const RowTarget& to, int row, const float (&values)[kColumns]) {
  char* const at = to.columns + row * to.row_bytes;
  if (to.fp32) {
    write_columns(reinterpret_cast<float*>(at), to, values);
  } else {
    write_columns(reinterpret_cast<Element*>(at), to, values);
  }
}

}  // namespace tandem::cuda::gemm
