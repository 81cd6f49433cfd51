// How long a product of the GEMM main loop takes, to choose the width of its tiles. Host only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/gemm/config.h"
#include "cuda/runtime/plan.h"
#include "tandem/device.h"

namespace tandem::cuda::gemm {

/// Predicted microseconds of `tiles` of 64 to 256 columns, `steps` of 64 deep: fitted to the choice
/// among them (docs/ops/projection.log.md).
inline double predict_tiles(std::int64_t tiles, std::int64_t steps, int columns,
                            int multiprocessors) {
  const double step = columns == 64    ? 0.265
                      : columns == 128 ? 0.368
                      : columns == 160 ? 0.445
                      : columns == 192 ? 0.525
                                       : 0.686;
  const double epilogue = columns > 192 ? 1.87 : 0.0;  // what of it lies beside no products
  const std::int64_t waves = ceil_div(tiles, std::max(multiprocessors, 1));
  return static_cast<double>(waves) * (static_cast<double>(steps) * step + epilogue);
}

/// The same for tiles whose depth a cluster's CTAs contract in kSplitParts, with so many bytes of
/// weights, which then come as fast as they can; infinity where not all clusters run at once.
inline double predict_split(std::int64_t tiles, std::int64_t steps, int columns, std::int64_t bytes,
                            const DeviceProperties& device) {
  static_assert(kSplitParts == 2);
  constexpr double kExchange = 4.2, kBytesPerMicrosecond = 2.6e6;
  if (tiles > device.clusters[0]) return std::numeric_limits<double>::infinity();
  return kExchange + std::max(predict_tiles(1, ceil_div(steps, kSplitParts), columns, 1),
                              static_cast<double>(bytes) / kBytesPerMicrosecond);
}

}  // namespace tandem::cuda::gemm
