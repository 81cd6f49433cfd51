// Predicts times of scans. A chain's tiles follow each other in one CTA, or lie side by side in a
// cluster, which exchanges their maps at each step.
#include "cuda/scan/plan.h"

#include <algorithm>

#include "cuda/runtime/device_model.h"
#include "tandem/device.h"

namespace tandem::cuda::scan {
namespace {

double predict(const ScanWork& work, int ranks, const DeviceProperties& device,
               const DeviceModel::Scan& model) {
  const std::int64_t at_once =
      std::max<std::int64_t>(std::int64_t{device.clusters_of(ranks)} * work.blocks_per_sm, 1);
  const auto steps = static_cast<double>(ceil_div(work.tiles, ranks));
  // Short rows of tensors are slower to read and write.
  const double elements =
      static_cast<double>(work.tile_tokens) * work.width * (1.0 + model.row / work.width);
  const double exchange = ranks > 1 ? model.exchange + ranks * model.exchange_rank : 0.0;
  const double alone = model.step + elements * model.element_alone;
  const double together =
      (work.rows ? model.rows_together : model.tile_together) + elements * model.element_together;
  const auto wave = [&](std::int64_t chains) {
    const double beside =
        std::clamp(static_cast<double>(chains * ranks) / std::max(device.multiprocessors, 1), 1.0,
                   static_cast<double>(work.blocks_per_sm));
    return model.start + steps * (std::max(alone, beside * together) + exchange);
  };
  // Where an SM holds several CTAs, the next ones begin as these end, one by one; not clusters.
  if (work.blocks_per_sm > 1 && ranks == 1 && work.chains > at_once) {
    return static_cast<double>(work.chains) / static_cast<double>(at_once) * wave(at_once);
  }
  const std::int64_t rest = work.chains % at_once;
  return static_cast<double>(work.chains / at_once) * wave(at_once) + (rest > 0 ? wave(rest) : 0.0);
}

}  // namespace

ScanPlan plan_scan(const ScanWork& work, const DeviceProperties& device) {
  const DeviceModel::Scan& model = device_model(device).scan;
  ScanPlan best{1, predict(work, 1, device, model)};
  std::int64_t steps = work.tiles;
  for (int ranks = 2; ranks <= kMostScanRanks && ranks < 2 * work.tiles; ++ranks) {
    if (device.clusters_of(ranks) == 0) break;
    if (ceil_div(work.tiles, ranks) == steps) continue;  // one more CTA saves nothing
    steps = ceil_div(work.tiles, ranks);
    const double time = predict(work, ranks, device, model);
    if (time < best.time) best = {ranks, time};
  }
  return best;
}

}  // namespace tandem::cuda::scan
