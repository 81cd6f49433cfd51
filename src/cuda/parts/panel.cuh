// Panels: the one shared-memory layout of 16-bit tiles. A panel is kRows rows of 64 elements (128
// bytes); the 16-byte pieces of row r are permuted by r mod 8 (the 128-byte swizzle of TMA and
// wgmma), so that 8 rows of one column touch all banks. A wider tile is several panels, one after
// another. Panels start at multiples of 1024 bytes.
#pragma once

#include <cstdint>

namespace tandem::cuda {

constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;

constexpr int panel_bytes(int rows) { return rows * kPanelRowBytes; }

/// Returns the byte offset of the 16-byte piece that holds columns [8*piece, 8*piece+8) of a row.
constexpr int panel_offset(int row, int piece) {
  return row * kPanelRowBytes + ((piece ^ (row & 7)) << 4);
}

}  // namespace tandem::cuda
