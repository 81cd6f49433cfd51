// How weights leave a panel for rows in memory that are not whole pieces of 16 bytes, which the
// copy engine cannot write.
#pragma once

#include <cstdint>

#include "cuda/parts/panel.cuh"

namespace tandem::cuda::attention_weights {

/// Stores the first `columns` columns, at most 64, of the first `rows` rows of a panel of kRows
/// rows to rows from `to` on, `stride` elements apart. Eight lanes have a row: what lies between
/// multiples of 16 bytes is stored at once, its ends element by element. All lanes of a warp, which
/// see the panel; they have read it when the last one returns.
template <int kRows, class Element>
__device__ __forceinline__ void store_panel_rows(const char* panel, Element* to,
                                                 std::int64_t stride, int rows, int columns) {
  const int lane = threadIdx.x % 8;
#pragma unroll 2
  for (int row = threadIdx.x % 32 / 8; row < kRows; row += 4) {
    if (row >= rows || columns <= 0) continue;
    Element* line = to + row * stride;
    const auto store_element = [&](int i) {
      line[i] = *reinterpret_cast<const Element*>(panel + panel_offset(row, i / 8) + i % 8 * 2);
    };
    const auto word = [&](int i) {
      return *reinterpret_cast<const std::uint32_t*>(panel + panel_offset(row, i / 4) + i % 4 * 4);
    };
    // Elements before the first multiple of 16 bytes.
    const int before = -static_cast<int>(reinterpret_cast<std::uintptr_t>(line) / 2) & 7;
    const int piece = before + 8 * lane;
    if (piece + 8 <= columns) {
      const bool odd = piece % 2 != 0;
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // why: of an even piece the word behind it may lie outside of the panel.
        const std::uint32_t upper = odd ? word(piece / 2 + i + 1) : 0;
        words[i] = __funnelshift_r(word(piece / 2 + i), upper, odd ? 16 : 0);
      }
      __stcs(reinterpret_cast<uint4*>(line + piece),
             make_uint4(words[0], words[1], words[2], words[3]));
    }
    if (lane < min(before, columns)) store_element(lane);
    const int behind = before + max(0, columns - before) / 8 * 8 + lane;
    if (behind < columns) store_element(behind);
  }
}

}  // namespace tandem::cuda::attention_weights
