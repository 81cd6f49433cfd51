// How long a product of the GEMM main loop takes, to choose the width of its tiles. Host only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gemm {

/// Predicted microseconds of `tiles` of 64 to 256 columns, `steps` of 64 deep: fitted to the choice
/// among them (docs/ops/projection.log.md).
inline double predict_tiles(std::int64_t tiles, std::int64_t steps, int columns,
                            int multiprocessors) {
  const double step = columns == 64    ? 0.265
                      : columns == 128 ? 0.368
                      : columns == 192 ? 0.525
                                       : 0.686;
  const double epilogue = columns > 192 ? 1.87 : 0.0;  // what of it lies beside no products
  const std::int64_t waves = ceil_div(tiles, std::max(multiprocessors, 1));
  return static_cast<double>(waves) * (static_cast<double>(steps) * step + epilogue);
}

}  // namespace tandem::cuda::gemm
