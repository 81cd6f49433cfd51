// A chain's tiles follow each other in one CTA, with no more than a barrier between them, or side
// by side in a cluster, which has to exchange their maps at each step.
#include "cuda/scan/plan.h"

#include <algorithm>

namespace tandem::cuda {

int scan_ranks(const ScanWork& work, int blocks_per_sm, int multiprocessors) {
  int best = 1;
  double fewest = 0;
  for (int ranks = 1; ranks <= kMostScanRanks && ranks < 2 * std::max<std::int64_t>(work.tiles, 1);
       ranks *= 2) {
    // why eleven twelfths: a cluster lies in one group of SMs, and of groups of 16 or 18 SMs, of an
    // H200 with 132, clusters of 4 or more leave some free (cudaOccupancyMaxActiveClusters: 30 of 4,
    // 15 of 8, 7 of 16).
    const int usable = ranks < 4 ? multiprocessors : multiprocessors * 11 / 12;
    const std::int64_t clusters = std::max(usable / ranks * blocks_per_sm, 1);
    const std::int64_t waves = (work.chains + clusters - 1) / clusters;
    const std::int64_t steps = (work.tiles + ranks - 1) / ranks;
    // why a tenth: an exchange takes about that part of a step.
    const double cost = static_cast<double>(waves * steps) * (ranks > 1 ? 1.1 : 1.0);
    if (ranks == 1 || cost < fewest) {
      fewest = cost;
      best = ranks;
    }
  }
  return best;
}

}  // namespace tandem::cuda
