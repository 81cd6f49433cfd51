// How long a product of the GEMM main loop takes, to choose the width of its tiles. Host only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

/// Predicted microseconds of `tiles` of 64 to 256 columns, `steps` of 64 deep
/// (docs/ops/projection.log.md). Between an H200, where a step of 256 columns takes twice as long
/// as one of 128, and an H100, where it takes 1.6 times as long.
inline double predict_tiles(std::int64_t tiles, std::int64_t steps, int columns,
                            int multiprocessors) {
  const double step = columns == 64 ? 0.29 : columns == 128 ? 0.385 : columns == 192 ? 0.57 : 0.68;
  const double epilogue = columns > 128 ? 1.0 : 0.0;  // what of it lies beside no products
  const std::int64_t waves = ceil_div(tiles, std::max(multiprocessors, 1));
  return static_cast<double>(waves) * (static_cast<double>(steps) * step + epilogue);
}

}  // namespace tandem::cuda::gemm
