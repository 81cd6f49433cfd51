// Predicts times of scans. A chain's tiles follow each other in one CTA, or lie side by side in a
// cluster, which exchanges their maps at each step. The model's constants are fitted to
// gated_scan's times on an H200 (docs/ops/gated_scan.md).
#include "cuda/scan/plan.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

std::int64_t divide_up(std::int64_t x, std::int64_t by) { return (x + by - 1) / by; }

double predict(const ScanWork& work, int ranks, int multiprocessors) {
  constexpr double kStart = 2.9;         // launch, first loads, last stores
  constexpr double kStep = 1.25;         // latency of a step, however small
  constexpr double kAlone = 1.0 / 7700;  // per element of a tile with an SM for itself
  constexpr double kExchange = 0.53;     // of a cluster, per step
  constexpr double kTogether = 0.35;     // per tile of an SM that is busy all the time
  constexpr double kTraffic = 1.0 / 6900;
  // why eleven twelfths: a cluster lies in one GPC, and in the GPCs of an H200's 132 SMs clusters
  // of 4 or more leave some SMs free (cudaOccupancyMaxActiveClusters: 30 of 4, 15 of 8, 7 of 16).
  const int usable = ranks < 4 ? multiprocessors : multiprocessors * 11 / 12;
  const std::int64_t clusters = std::max(usable / ranks * work.blocks_per_sm, 1);
  const std::int64_t waves = divide_up(work.chains, clusters);
  const std::int64_t steps = divide_up(work.tiles, ranks);
  const double elements = static_cast<double>(work.tile_tokens) * work.width;
  const double beside = static_cast<double>(std::clamp<std::int64_t>(
      divide_up(work.chains * ranks, multiprocessors), 1, work.blocks_per_sm));
  const double alone = kStep + elements * kAlone + (ranks > 1 ? kExchange : 0.0);
  // Short rows of tensors are slower to read and write.
  const double together = beside * (kTogether + elements * (1.0 + 37.0 / work.width) * kTraffic);
  return static_cast<double>(waves) *
         (kStart + static_cast<double>(steps) * std::max(alone, together));
}

}  // namespace

ScanPlan plan_scan(const ScanWork& work, int multiprocessors) {
  ScanPlan best{1, predict(work, 1, multiprocessors)};
  for (int ranks = 2; ranks <= kMostScanRanks && ranks < 2 * work.tiles; ranks *= 2) {
    const double time = predict(work, ranks, multiprocessors);
    if (time < best.time) best = {ranks, time};
  }
  return best;
}

}  // namespace tandem::cuda
