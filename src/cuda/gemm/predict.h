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

/// Microseconds of waves of CTAs that take `steps` of 64 deep each, and `end` beside no products. A
/// step takes `products`, or until so many bytes of weights have come for each CTA, which takes the
/// longer, the more CTAs ask for theirs.
inline double predict_waves(std::int64_t ctas, int multiprocessors, std::int64_t steps,
                            double products, double weights, double end) {
  constexpr double kByte = 1.49e-5, kByteOfAnother = 1.74e-7;
  const std::int64_t in_a_wave = std::max(multiprocessors, 1);
  const auto wave = [&](std::int64_t count) {
    if (count == 0) return 0.0;
    const double loads = weights * (kByte + kByteOfAnother * static_cast<double>(count));
    return static_cast<double>(steps) * std::max(products, loads) + end;
  };
  return static_cast<double>(ctas / in_a_wave) * wave(in_a_wave) + wave(ctas % in_a_wave);
}

/// Bytes of a step's weights for each of the row_tiles CTAs that share them.
inline double weights_of_step(int columns, std::int64_t row_tiles) {
  return 2.0 * kTileDepth * columns / static_cast<double>(std::max<std::int64_t>(row_tiles, 1));
}

/// What a step of a tile takes by itself.
inline double products_of_step(int columns, std::int64_t row_tiles) {
  return columns == 64    ? (row_tiles > 1 ? 0.252 : 0.198)
         : columns == 96  ? 0.332
         : columns == 128 ? 0.368
         : columns == 160 ? 0.445
         : columns == 192 ? 0.525
                          : 0.686;
}

/// What of a tile's epilogue lies beside no products.
inline double end_of_tile(int columns) { return columns > 192 ? 1.87 : 0.0; }

/// Predicted microseconds, without what all launches take, of row_tiles x column_tiles tiles of 64
/// to 256 columns, `steps` of 64 deep: fitted to the choice among them
/// (docs/ops/projection.log.md).
inline double predict_tiles(std::int64_t row_tiles, std::int64_t column_tiles, std::int64_t steps,
                            int columns, int multiprocessors) {
  return predict_waves(row_tiles * column_tiles, multiprocessors, steps,
                       products_of_step(columns, row_tiles), weights_of_step(columns, row_tiles),
                       end_of_tile(columns));
}

/// How the last tiles of a product are cut into parts of their depth (gemm/operands.h).
struct TailPlan {
  std::int64_t tiles = 0;  // 0: no tail
  int parts = 1;
  double time = 0.0;  // predicted microseconds of the product

  std::size_t sums_bytes(int columns) const {
    return static_cast<std::size_t>(tiles * parts) * kTileRows * columns * sizeof(float);
  }
  /// Predicted microseconds until parts of tiles of so many columns are stored and added up.
  double sums_time(int columns) const {
    constexpr double kSum = 2.5, kBytesPerMicrosecond = 2.5e6;
    return kSum + static_cast<double>(sums_bytes(columns)) / kBytesPerMicrosecond;
  }
};

/// The quickest way to compute tiles as those of predict_tiles: all whole, or those behind the last
/// full wave in parts. Fitted to the difference (docs/ops/projection.log.md), so a last wave that
/// is not full takes less here than there.
inline TailPlan plan_tail(std::int64_t row_tiles, std::int64_t column_tiles, std::int64_t steps,
                          int columns, int multiprocessors) {
  constexpr int kMostWaves = 8, kShortest = 8;  // steps of a part
  constexpr double kNextWave = 0.5;
  constexpr double kAlone = 0.8;  // of the time that a wave of all multiprocessors takes
  const std::int64_t all = std::max(multiprocessors, 1);
  const std::int64_t tail = row_tiles * column_tiles % all;
  const double weights = weights_of_step(columns, row_tiles);
  const double products = products_of_step(columns, row_tiles);
  const auto predict = [&](std::int64_t count, std::int64_t of_steps) {
    const auto waves = [&](std::int64_t ctas) {
      return predict_waves(ctas, multiprocessors, of_steps, products, weights,
                           end_of_tile(columns));
    };
    const std::int64_t last = count % all;
    const double busy = static_cast<double>(last) / static_cast<double>(all);
    return waves(count - last) + (kAlone + (1.0 - kAlone) * busy) * waves(last);
  };
  const double whole = predict(row_tiles * column_tiles - tail, steps);
  TailPlan best{0, 1, whole + predict(tail, steps)};
  for (int waves = 1; waves <= kMostWaves && tail > 0; ++waves) {
    const std::int64_t parts = std::min(waves * all / tail, steps / kShortest);
    if (parts <= best.parts) continue;
    TailPlan cut{tail, static_cast<int>(parts)};
    cut.time = whole + predict(tail * parts, ceil_div(steps, parts)) + cut.sums_time(columns) +
               kNextWave * static_cast<double>(ceil_div(tail * parts, all) - 1);
    if (cut.time < best.time) best = cut;
  }
  return best;
}

/// Tiles of a product, or parts of them, of which each takes so many microseconds.
struct Tiles {
  std::int64_t count;
  double time;
};

/// How the tiles of a product that runs beside another one are shared (gemm/operands.h), and the
/// predicted microseconds of both.
struct BesidePlan {
  std::int64_t early_ctas = 0;
  std::int64_t early_tiles = 0;
  double time = 0.0;
};
inline BesidePlan plan_beside(const Tiles& before, const Tiles& product, int multiprocessors) {
  const std::int64_t all = std::max(multiprocessors, 1);
  const std::int64_t busy = before.count % all;  // for a tile longer than the others
  const double free_at = static_cast<double>(before.count / all) * before.time;
  const auto time_of = [&](std::int64_t more) {
    const std::int64_t shared = std::max<std::int64_t>(product.count - more * (all - busy), 0);
    const double rest = static_cast<double>(ceil_div(shared, all)) * product.time;
    const double early = free_at + static_cast<double>(more) * product.time + rest;
    return busy == 0 ? early : std::max(early, free_at + before.time + rest);
  };
  BesidePlan best{all - busy, 0, time_of(0)};
  if (busy == 0) return best;
  const std::int64_t most = ceil_div(product.count, all - busy);
  const auto while_busy = static_cast<std::int64_t>(before.time / product.time);
  for (std::int64_t more = while_busy; more <= while_busy + 1; ++more) {
    const std::int64_t taken = std::min(more, most);
    const double time = time_of(taken);
    if (time < best.time) best = {all - busy, taken * (all - busy), time};
  }
  return best;
}

/// As predict_tiles, for tiles whose depth a cluster's CTAs contract in kSplitParts; infinity where
/// not all clusters run at once. Fitted to tiles of 64 columns.
inline double predict_split(std::int64_t row_tiles, std::int64_t column_tiles, std::int64_t steps,
                            int columns, const DeviceProperties& device) {
  static_assert(kSplitParts == 2);  // what was fitted
  constexpr double kExchange = 1.9;
  const std::int64_t tiles = row_tiles * column_tiles;
  if (tiles > device.clusters_of(kSplitParts)) return std::numeric_limits<double>::infinity();
  return kExchange + predict_waves(kSplitParts * tiles, device.multiprocessors,
                                   ceil_div(steps, kSplitParts),
                                   products_of_step(columns, row_tiles),
                                   weights_of_step(columns, row_tiles), 0.0);
}

/// Columns of the tiles of a variant with tiles of up to most_rows by `columns`, 0 rows for any
/// number, where a product has tiles_of(columns) of them. A stream of the weights takes narrower
/// ones where wide ones have too few steps under way, or leave multiprocessors less to load than
/// the busiest one. Not others: behind a kernel of the same call more CTAs were slower.
template <class TilesOf>
int few_rows_columns(int most_rows, int columns, std::int64_t rows, std::int64_t depth,
                     int multiprocessors, TilesOf tiles_of) {
  constexpr double kArrival = 1.5;  // of what a step asks for, beside all others
  constexpr double kByte = 2.3e-7;  // of a stream of the weights
  if (most_rows == 0 || most_rows > kStreamRows || rows > kStreamRows) return columns;
  const std::int64_t in_a_wave = std::max(multiprocessors, 1);
  const auto predict = [&](int width) {
    const std::int64_t tiles = tiles_of(width);
    const int parts = few_rows_shape(most_rows, rows, tiles, depth, multiprocessors).parts;
    const std::int64_t ctas = tiles * parts;
    const std::int64_t loads = ctas > in_a_wave ? ceil_div(ctas, in_a_wave) * in_a_wave : ctas;
    const int stages = few_rows_stages(most_rows, columns, width, static_cast<int>(rows)).count;
    const double bytes = static_cast<double>(loads) * weights_of_step(width, 1);
    return static_cast<double>(ceil_div(ceil_div(depth, kTileDepth), parts)) *
           std::max(kArrival / stages, kByte * bytes);
  };
  int best = columns;
  double least = predict(columns);
  for (int width = columns - 8; width >= columns / 2; width -= 8) {
    const double time = predict(width);
    if (time >= least) continue;
    best = width;
    least = time;
  }
  return best;
}

/// What tiles take longer than predicted where predict_few_rows is the alternative: their first
/// loads, and their end. Nothing where one is as high as all rows, nor of many rows: there few rows
/// must win by as much.
inline double ends_of_tiles(int columns, bool splits, std::int64_t rows) {
  constexpr std::int64_t kManyRows = 512;
  if (rows <= kTileRows || rows >= kManyRows) return 0.0;
  return splits ? 1.5 : columns == 64 ? 0.0 : 2.6;
}

/// The same as predict_tiles, for tiles of up to `most_rows` rows and so many columns by
/// gemm/few_rows.cuh.
inline double predict_few_rows(int most_rows, int columns, std::int64_t rows,
                               std::int64_t column_tiles, std::int64_t depth, int multiprocessors) {
  constexpr double kLeastStep = 0.18, kProductsOfRow = 0.00266, kLoadOfRow = 0.001;
  constexpr double kExchange = 1.8, kExchangeOfRow = 0.0246, kEpilogueOfRow = 0.0103;
  constexpr double kNextWave = 2.7;
  constexpr double kWeightsAgain = 0.2;  // of the weights' way, for each other tile of rows
  const FewRowsShape shape = few_rows_shape(most_rows, rows, column_tiles, depth, multiprocessors);
  const std::int64_t ctas = shape.row_tiles * column_tiles * shape.parts;
  const double width = static_cast<double>(columns) / kFewRowsColumns;
  const int multiplied = std::max(least_few_rows(most_rows), (shape.rows + 7) / 8 * 8);
  const double step = std::max({kLeastStep * width, kProductsOfRow * multiplied * width,
                                kLoadOfRow * (columns + shape.rows)});
  const double finished = static_cast<double>(shape.rows) / shape.parts;
  const double exchange =
      shape.parts == 1 ? 0.0 : kExchange + kExchangeOfRow * width * (shape.rows - finished);
  // Between waves nothing is under way beside a CTA's rows' end and the next one's first loads.
  const double next = kNextWave * static_cast<double>(ceil_div(ctas, multiprocessors) - 1);
  const double weights = (1.0 - kWeightsAgain) * weights_of_step(columns, shape.row_tiles) +
                         kWeightsAgain * weights_of_step(columns, 1);
  return exchange + next +
         predict_waves(ctas, multiprocessors, ceil_div(ceil_div(depth, kTileDepth), shape.parts),
                       step, weights, kEpilogueOfRow * finished);
}

}  // namespace tandem::cuda::gemm
