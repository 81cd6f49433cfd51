// Predicts times of scans. A chain's tiles follow each other in one CTA, or lie side by side in a
// cluster, which exchanges their maps at each step.
#include "cuda/scan/plan.h"

#include <algorithm>
#include <cmath>

#include "cuda/runtime/device_model.h"
#include "tandem/device.h"

namespace tandem::cuda::scan {
namespace {

double predict(const ScanWork& work, int ranks, const DeviceProperties& device,
               const DeviceModel::Scan& model) {
  const int multiprocessors = device.multiprocessors;
  const std::int64_t clusters =
      std::max<std::int64_t>(device.clusters_of(ranks) * work.blocks_per_sm, 1);
  // Where an SM holds several CTAs, the next ones begin as these end, one by one; not clusters.
  const double chains = static_cast<double>(work.chains) / static_cast<double>(clusters);
  const bool one_by_one = work.blocks_per_sm > 1 && ranks == 1;
  const double waves = one_by_one ? std::max(chains, 1.0) : std::ceil(chains);
  const std::int64_t steps = ceil_div(work.tiles, ranks);
  // Short rows of tensors are slower to read and write.
  const double elements =
      static_cast<double>(work.tile_tokens) * work.width * (1.0 + model.row / work.width);
  const double beside = static_cast<double>(std::clamp<std::int64_t>(
      ceil_div(work.chains * ranks, multiprocessors), 1, work.blocks_per_sm));
  const double exchange = ranks > 1 ? model.exchange + ranks * model.exchange_rank : 0.0;
  const double alone = model.step + elements * model.element_alone + exchange;
  const double together = beside * (model.tile_together + elements * model.element_together);
  return waves * (model.start + static_cast<double>(steps) * std::max(alone, together));
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
