// How long a product of the GEMM main loop takes, to choose the width of its tiles. Host only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/gemm/config.h"
#include "cuda/gemm/few_rows_config.h"
#include "cuda/runtime/plan.h"
#include "tandem/device.h"

namespace tandem::cuda::gemm {

/// Predicted microseconds, without what all launches take, of `tiles` of 64 to 256 columns, `steps`
/// of 64 deep, with rows of one box of A or more: fitted to the choice among them
/// (docs/ops/projection.log.md).
inline double predict_tiles(std::int64_t tiles, std::int64_t steps, int columns,
                            int multiprocessors, std::int64_t rows = kTileRows + 1) {
  const double step = columns == 64    ? (rows > kTileRows ? 0.255 : 0.195)
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
                            const DeviceProperties& device, std::int64_t rows) {
  static_assert(kSplitParts == 2);
  constexpr double kExchange = 1.9, kBytesPerMicrosecond = 4.8e6;
  if (tiles > device.clusters[0]) return std::numeric_limits<double>::infinity();
  return kExchange + std::max(predict_tiles(1, ceil_div(steps, kSplitParts), columns, 1, rows),
                              static_cast<double>(bytes) / kBytesPerMicrosecond);
}

/// The same for tiles of up to `most_rows` rows by gemm/few_rows.cuh.
inline double predict_few_rows(int most_rows, std::int64_t rows, std::int64_t column_tiles,
                               std::int64_t depth, int multiprocessors) {
  constexpr double kBase = 0.14, kLeastStep = 0.281, kProductsOfRow = 0.0028;
  constexpr double kLoadOfRow = 0.00149, kExchange = 1.7, kExchangeOfRow = 0.0258,
                   kEpilogueOfRow = 0.015;
  const FewRowsShape shape = few_rows_shape(most_rows, rows, column_tiles, depth, multiprocessors);
  const std::int64_t ctas = shape.row_tiles * column_tiles * shape.parts;
  const std::int64_t steps = ceil_div(ceil_div(depth, kTileDepth), shape.parts);
  const double step = std::max(
      {kLeastStep, kProductsOfRow * most_rows, kLoadOfRow * (kFewRowsColumns + shape.rows)});
  const double finished = static_cast<double>(shape.rows) / shape.parts;
  const double exchange =
      shape.parts == 1 ? 0.0 : kExchange + kExchangeOfRow * (shape.rows - finished);
  return kBase + exchange +
         static_cast<double>(ceil_div(ctas, std::max(multiprocessors, 1))) *
             (static_cast<double>(steps) * step + kEpilogueOfRow * finished);
}

}  // namespace tandem::cuda::gemm
