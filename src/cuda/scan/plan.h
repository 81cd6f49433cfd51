// How many CTAs share a chain of a scan, and how long that takes. Host only.
#pragma once

#include <cstdint>

#include "cuda/runtime/plan.h"

namespace tandem {
struct DeviceProperties;
}

namespace tandem::cuda::scan {

constexpr int kMostScanRanks = 16;  // CTAs of a cluster

/// What a kernel's CTAs have to do: `chains` chains of `tiles` tiles one behind the other.
struct ScanWork {
  std::int64_t chains;
  std::int64_t tiles;
  int tile_tokens;
  int width;          // channels of a tile
  int blocks_per_sm;  // CTAs that a multiprocessor holds
  bool rows = false;  // whether TMA copies tiles
};

struct ScanPlan {
  int ranks;    // CTAs of a cluster that share a chain, each with every ranks-th tile: 1 to 16
  double time;  // about microseconds, to be compared with other tiles' times
};

ScanPlan plan_scan(const ScanWork& work, const DeviceProperties& device);

}  // namespace tandem::cuda::scan
