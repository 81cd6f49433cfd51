// Tile, stages, threads and registers of the GEMM main loop (gemm/loop.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

constexpr int kTileRows = 128;
constexpr int kTileDepth = 64;  // of the contracted axis, per stage
constexpr int kPanelBytes = 64 * kTileDepth * 2;

// Named barriers: of each warpgroup that multiplies, of its turn, and of both before they begin.
constexpr int kRowsBarrier = 1;
constexpr int kTurnBarrier = 3;
constexpr int kPrepareBarrier = 5;

constexpr int kSplitParts = 2;  // of a tile's depth where tiles are few

/// Which operand is read transposed, in terms of row-major matrices: A B^T, A B, or A^T B.
enum class Layout { kNT, kNN, kTN };
/// Whether the contraction runs along an operand's rows in memory ("K-major").
constexpr bool k_major_a(Layout layout) { return layout != Layout::kTN; }
constexpr bool k_major_b(Layout layout) { return layout == Layout::kNT; }

/// Rows of the boxes of an operand's tensor map where it is K-major; else boxes are panels of 64
/// columns. why not all of a tile: boxes outside of a matrix are not loaded, and for a row outside
/// the TMA takes several times longer than for one inside. A single tile of A comes in one box
/// without rows outside, few rows in smaller boxes where fewer then lie outside
/// (docs/ops/projection.log.md).
constexpr int kBoxRows = 64;
constexpr int box_rows_a(Layout layout, std::int64_t rows) {
  if (!k_major_a(layout)) return kBoxRows;
  if (0 < rows && rows <= kTileRows) return static_cast<int>(rows);
  return rows < 1024 && (rows - 1) % kBoxRows < kBoxRows / 2 ? kBoxRows / 2 : kBoxRows;
}
constexpr int box_rows_b(Layout layout, int columns) {
  return k_major_b(layout) && columns % kBoxRows != 0 ? kBoxRows / 2 : kBoxRows;
}

/// A product of 16-bit matrices of ElementT by tiles of 128 x kColumnsT. With kTN the rows of A and
/// B are tokens, which are contracted. Of a tile of 256 columns both warpgroups take 64 rows, else
/// every other tile each. `kGatedT`: A is multiplied element by element with the operands' `gate`,
/// a matrix of its shape, on its way into the product. `kPartsT`: CTAs of a cluster that contract a
/// part of a tile's depth each (gemm/split.cuh).
template <class ElementT, Layout kLayoutT, int kColumnsT, bool kGatedT = false, int kPartsT = 1>
struct Config {
  using Element = ElementT;
  static constexpr Layout kLayout = kLayoutT;
  static constexpr bool kContractsTokens = kLayout == Layout::kTN;
  static constexpr int kColumns = kColumnsT;
  static constexpr int kPanels = (kColumns + 63) / 64;  // of B's tile; A's has 2
  static_assert(kColumns % 32 == 0 && kColumns <= 256);
  static constexpr int kParts = kPartsT;
  static constexpr bool kTogether = kColumns > 192 || kParts > 1;
  static constexpr int kHalves = kTogether ? 1 : 2;  // of a tile, a warpgroup's
  static constexpr bool kGated = kGatedT;
  static_assert(!kGated || (kTogether && k_major_a(kLayout)));

  static constexpr int kThreads = 384;  // two warpgroups multiply, two threads of the third load
  static constexpr int kProductRegisters = 240;
  static constexpr int kLoadRegisters = 24;

  // Gated, A and the gate behind it have a ring of their own: once they are in registers, before
  // their product begins, their stage is free, B's when it has ended.
  static constexpr int kPanelsA = kGated ? 4 : 2;
  static constexpr int kStagesA = kGated ? 3 : 0;  // of that ring
  static constexpr int kStageBytes = ((kGated ? 0 : kPanelsA) + kPanels) * kPanelBytes;
  // Of a warpgroup, for results: of a narrow tile all, so that none waits until the store of
  // another has read its panel, about a microsecond; of a wide one as many as leave four stages.
  static constexpr int kStorePanels = kTogether ? 2 : (kColumns > 128 ? 3 : kHalves * kPanels);
  static constexpr int kStoreBytes = 2 * kStorePanels * kPanelBytes;
  static constexpr int kSumBytes = (kParts - 1) * 64 * kColumns * 4;  // of a half's other parts
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kStages = (kSharedMemoryPerBlock - kStoreBytes - kSumBytes - kBarrierBytes -
                                  kStagesA * kPanelsA * kPanelBytes) /
                                 kStageBytes;
  // By which one warpgroup begins before the other where both take part: as many as may be, or
  // their epilogues meet.
  static constexpr int kStepsAhead = kGated ? kStagesA - 1 : std::min(3, kStages - 1);
};

}  // namespace tandem::cuda::gemm
