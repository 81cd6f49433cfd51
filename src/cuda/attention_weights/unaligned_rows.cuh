// How weights leave shared memory for rows in memory that are not whole pieces of 16 bytes, which
// the copy engine cannot write.
#pragma once

#include <cstdint>

#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention_weights {

/// Rows of 64 elements with 16 bytes behind each, so that eight rows of one column touch all banks.
/// why not a panel, where there is room: each word's place is to be computed there, a tenth of a
/// kernel's time.
constexpr int kPaddedRowBytes = 144;
constexpr int padded_bytes(int rows) { return rows * kPaddedRowBytes; }
/// The byte offset of the 16 bytes with columns [8*piece, 8*piece+8) of a row.
constexpr int padded_offset(int row, int piece) { return padded_bytes(row) + 16 * piece; }

/// A padded row, a panel's, and one of zeros: columns 2i and 2i+1, of i = 32 anything, and column
/// i.
struct PaddedRow {
  const char* from;
  __device__ std::uint32_t pair(int i) const {
    return reinterpret_cast<const std::uint32_t*>(from)[i];
  }
  __device__ std::uint16_t column(int i) const {
    return reinterpret_cast<const std::uint16_t*>(from)[i];
  }
};
struct PanelRow {
  const char* from;
  int swizzle;  // of the bytes of the row, as panel_offset has it
  __device__ std::uint32_t pair(int i) const {
    return *reinterpret_cast<const std::uint32_t*>(from +
                                                   ((4 * i & (kPanelRowBytes - 1)) ^ swizzle));
  }
  __device__ std::uint16_t column(int i) const {
    return *reinterpret_cast<const std::uint16_t*>(from + (2 * i ^ swizzle));
  }
};
struct ZeroRow {
  __device__ std::uint32_t pair(int) const { return 0; }
  __device__ std::uint16_t column(int) const { return 0; }
};

/// Stores the first `columns` columns, at most 64, of the first `rows` of kRows rows of 16-bit
/// elements to rows from `to` on, `stride` elements apart; row_of(row) is a row. Eight lanes have
/// one: what lies between multiples of 16 bytes is stored at once, its ends element by element. All
/// lanes of a warp.
template <int kRows, class RowOf>
__device__ __forceinline__ void store_unaligned_rows(const RowOf& row_of, void* to,
                                                     std::int64_t stride, int rows, int columns) {
  const int lane = threadIdx.x % 8;
#pragma unroll 2
  for (int row = threadIdx.x % 32 / 8; row < kRows; row += 4) {
    if (row >= rows || columns <= 0) continue;
    auto* line = static_cast<std::uint16_t*>(to) + row * stride;
    const auto from = row_of(row);
    // Elements before the first multiple of 16 bytes.
    const int before = -static_cast<int>(reinterpret_cast<std::uintptr_t>(line) / 2) & 7;
    const int piece = before + 8 * lane;
    if (piece + 8 <= columns) {
      std::uint32_t words[5];  // of an even piece the last one is not stored
#pragma unroll
      for (int i = 0; i < 5; ++i) words[i] = from.pair(piece / 2 + i);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = __funnelshift_r(words[i], words[i + 1], piece % 2 * 16);
      }
      __stcs(reinterpret_cast<uint4*>(line + piece),
             make_uint4(words[0], words[1], words[2], words[3]));
    }
    if (lane < min(before, columns)) line[lane] = from.column(lane);
    const int behind = before + max(0, columns - before) / 8 * 8 + lane;
    if (behind < columns) line[behind] = from.column(behind);
  }
}

/// The same of padded rows, and of rows of a panel. All lanes see them; they have read them when
/// the last one returns.
template <int kRows>
__device__ __forceinline__ void store_padded_rows(const char* padded, void* to, std::int64_t stride,
                                                  int rows, int columns) {
  store_unaligned_rows<kRows>([&](int row) { return PaddedRow{padded + padded_offset(row, 0)}; },
                              to, stride, rows, columns);
}
template <int kRows>
__device__ __forceinline__ void store_panel_rows(const char* panel, void* to, std::int64_t stride,
                                                 int rows, int columns) {
  store_unaligned_rows<kRows>(
      [&](int row) {
        return PanelRow{panel + panel_bytes(row), (row & 7) << 4};
      },
      to, stride, rows, columns);
}

}  // namespace tandem::cuda::attention_weights
