// Tile, stages and parts of the product with few rows (gemm/few_rows.cuh).
#pragma once

#include <cstdint>

#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

constexpr int kFewRowsColumns = 128;  // of the result, per CTA: B's rows
constexpr int kMostFewRowsParts = 4;  // of the contracted axis: sums of more take longer

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

/// Into how many parts the contracted axis is cut: no more than give each multiprocessor a CTA of
/// its own, which loads fast enough, and no part shorter than two steps. why fewer above two: such
/// clusters find place on nine tenths of an H200, and the last ones would share multiprocessors.
inline int few_rows_parts(std::int64_t tiles, std::int64_t depth, int multiprocessors) {
  const std::int64_t steps = ceil_div(depth, kTileDepth);
  const auto place = [&](int parts) {
    return parts > 2 ? multiprocessors - multiprocessors / 11 : multiprocessors;
  };
  int parts = kMostFewRowsParts;
  while (parts > 1 && (tiles * parts > place(parts) || steps < 2 * parts)) --parts;
  return parts;
}

}  // namespace tandem::cuda::gemm
