// Tiles, stages and parts of the product with few rows (gemm/few_rows.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

constexpr int kFewRowsColumns = 128;   // of the result, per CTA: B's rows; of wide tiles more
constexpr int kFewRowsTwoTiles = 256;  // of a CTA that computes two such tiles side by side
constexpr int kMostFewRowsParts = 4;   // of the contracted axis: sums of more take longer
constexpr int kStreamRows = 64;        // up to which a product is bound by B's bytes
constexpr int kRowsAtOnce = 8;         // that a CTA's threads finish, a group
constexpr int kEarlySteps = 4;         // of B, before the kernel before has ended: of more it slows

// A B of up to so many bytes is asked for while the kernel before still runs. why no larger one:
// with 16 MB that kernel loses more by it.
constexpr std::int64_t kAskedBytes = 10 << 20;

/// Rows that wgmma multiplies at least, of a variant with tiles of up to most_rows. Of several
/// equally high tiles each has more than half of these; for fewer rows lower tiles are there. Up to
/// kStreamRows products do not bind.
constexpr int least_few_rows(int most_rows) {
  return most_rows <= kStreamRows ? most_rows : most_rows / 16 * 8 + 8;
}

/// CTAs per multiprocessor with tiles of up to so many rows, and what each has for its stages.
constexpr int few_rows_ctas(int most_rows) { return most_rows <= kStreamRows ? 2 : 1; }
constexpr int few_rows_stage_bytes(int most_rows) {
  return kSharedMemoryPerMultiprocessor / few_rows_ctas(most_rows) - 2048;
}

/// Stages of a step's operands: of B a row for each column of a tile, and A's rows from `a_at` on.
/// What else wgmma reads is another stage's, and in no result.
struct FewRowsStages {
  static constexpr int kMost = 16;
  int a_at;
  int bytes;
  int count;
};
/// As many as there is room for, of a variant with tiles of up to most_rows by most_columns.
constexpr FewRowsStages few_rows_stages(int most_rows, int most_columns, int columns, int rows) {
  constexpr int kRowBytes = kTileDepth * 2;
  const int a_at = columns * kRowBytes;
  const int bytes = a_at + (rows + 7) / 8 * 8 * kRowBytes;
  const int read_b = most_columns * kRowBytes, read_a = a_at + most_rows * kRowBytes;
  const int read = read_b > read_a ? read_b : read_a;
  const int count = (few_rows_stage_bytes(most_rows) - read) / bytes + 1;
  return {a_at, bytes, count < FewRowsStages::kMost ? count : FewRowsStages::kMost};
}

/// A product by tiles of up to kRowsT rows and kColumnsT columns of ElementT.
template <class ElementT, int kRowsT, int kColumnsT = kFewRowsColumns>
struct FewRowsConfig {
  using Element = ElementT;
  static constexpr int kRows = kRowsT;
  static constexpr int kLeastRows = least_few_rows(kRows);
  static constexpr int kColumns = kColumnsT;
  static constexpr int kTiles = kColumns == kFewRowsTwoTiles ? 2 : 1;
  static constexpr int kTileColumns = kColumns / kTiles;
  static constexpr int kProductThreads = 2 * kTileColumns;  // 64 columns of each a warpgroup
  // Where the sums, and some 40 registers beside them, are more than as many warps can have, a
  // whole warpgroup loads, and leaves its registers to the others.
  static constexpr bool kGivesRegisters = kTiles * kRows / 2 + 40 >
                                          (kProductThreads > 256 ? 128 : 168);
  static constexpr int kThreads = kProductThreads + (kGivesRegisters ? 128 : 32);
  static constexpr int kProductRegisters = kProductThreads > 256 ? 160 : 240;
  static constexpr int kLoadRegisters = 24;
  static constexpr int kCtas = few_rows_ctas(kRows);
  static constexpr int kStageBytes = few_rows_stage_bytes(kRows);
  static_assert(kRows % 8 == 0 && kRows <= 256 && kStageBytes % 1024 == 0);
  static_assert(few_rows_stages(kRows, kColumns, kColumns, kRows).count >= 3);

  // Once all stages have been read a tile's sums take their place: the rows that a CTA finishes,
  // and behind them other parts of these, as wgmma's fragments lie.
  static constexpr int kGroups = kRows / kRowsAtOnce;
  static constexpr int kRowFloats = kTileColumns + 4;  // padded: a warp's four lie in other banks
  static constexpr int groups_of(int parts) { return (kGroups + parts - 1) / parts; }
  static constexpr int others_at(int parts) {
    return groups_of(parts) * kRowsAtOnce * kRowFloats * static_cast<int>(sizeof(float));
  }
  static constexpr bool sums_fit(int parts) {
    return others_at(parts) + (parts - 1) * groups_of(parts) * kProductThreads * 16 <= kStageBytes;
  }
  static_assert(kMostFewRowsParts == 4 && sums_fit(1) && sums_fit(2) && sums_fit(3) && sums_fit(4));
};

/// Rows of a tile of up to `most`, where all but the last are equally high.
inline int few_rows_of_tile(int most, std::int64_t rows) {
  return static_cast<int>(
      std::max<std::int64_t>(ceil_div(rows, std::max<std::int64_t>(ceil_div(rows, most), 1)), 1));
}

/// How a product is cut into clusters.
struct FewRowsShape {
  int row_tiles;
  int rows;   // of a tile, the last one less
  int parts;  // of the contracted axis, a CTA each
};

/// Tiles of up to `most_rows` rows, all but the last one equally high. The contracted axis is cut
/// into no more parts than give each multiprocessor a CTA of its own, which loads fast enough, and
/// none shorter than two steps. why fewer above two: clusters of three find place on five sixths of
/// an H200, of four on ten elevenths, and the last ones would share multiprocessors or wait.
inline FewRowsShape few_rows_shape(int most_rows, std::int64_t rows, std::int64_t column_tiles,
                                   std::int64_t depth, int multiprocessors) {
  const int of_tile = few_rows_of_tile(most_rows, rows);
  const std::int64_t row_tiles = ceil_div(rows, of_tile);
  const std::int64_t tiles = row_tiles * column_tiles;
  const std::int64_t steps = ceil_div(depth, kTileDepth);
  const auto place = [&](int parts) {
    return parts == 3   ? multiprocessors - multiprocessors / 6
           : parts == 4 ? multiprocessors - multiprocessors / 11
                        : multiprocessors;
  };
  static_assert(kMostFewRowsParts == 4);
  int parts = kMostFewRowsParts;
  while (parts > 1 && (tiles * parts > place(parts) || steps < 2 * parts)) --parts;
  return {static_cast<int>(row_tiles), of_tile, parts};
}

/// Rows of A's boxes where its rows, K-major, are the result's: with tiles of gemm/few_rows.cuh
/// those of a tile, which no row outside fills up.
inline int box_rows_a(Layout layout, std::int64_t rows, int few_rows) {
  return few_rows == 0 ? box_rows_a(layout, rows) : few_rows_of_tile(few_rows, rows);
}

}  // namespace tandem::cuda::gemm
