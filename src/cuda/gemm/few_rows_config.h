// Tile, stages and parts of the product with few rows (gemm/few_rows.cuh).
#pragma once

#include <cstdint>
#include <cstdlib>

#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

constexpr int kFewRowsColumns = 128;  // of the result, per CTA: B's rows
constexpr int kMostFewRowsParts = 8;  // of the contracted axis: the portable cluster

/// A product of up to kRowsT rows of ElementT.
template <class ElementT, int kRowsT>
struct FewRowsConfig {
  using Element = ElementT;
  static constexpr int kRows = kRowsT;
  static constexpr int kThreads = 288;
  static constexpr int kBBytes = kFewRowsColumns * kTileDepth * 2;
  static constexpr int kABytes = kRows * kTileDepth * 2;
  static constexpr int kStages = (kSharedMemoryPerMultiprocessor / 2 - 2048) / (kBBytes + kABytes);
  static_assert(kRows == 8 || kRows == 16 || kRows == 32 || kRows == 64);
  static_assert(kABytes % 1024 == 0 && kStages >= 3);
};

/// Into how many parts the contracted axis is cut: so that the busiest multiprocessor has the least
/// to load, with all CTAs running at once, two on each, and no part shorter than two steps.
inline int few_rows_parts(std::int64_t tiles, std::int64_t depth, int multiprocessors) {
  const std::int64_t steps = ceil_div(depth, kTileDepth);
  if (const char* e = getenv("PARTS")) return atoi(e);
  int best = 1;
  std::int64_t least = 0;
  for (int parts = 1; parts <= kMostFewRowsParts; ++parts) {
    if (parts > 1 && (tiles * parts > 2 * multiprocessors || steps < 2 * parts)) break;
    const std::int64_t load = ceil_div(tiles * parts, multiprocessors) * ceil_div(steps, parts);
    if (parts == 1 || load < least) {
      best = parts;
      least = load;
    }
  }
  return best;
}

}  // namespace tandem::cuda::gemm
