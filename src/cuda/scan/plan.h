// How many CTAs share a chain of a scan. Host only.
#pragma once

#include <cstdint>

namespace tandem::cuda {

constexpr int kMostScanRanks = 16;  // CTAs of a cluster

/// What a kernel's CTAs have to do: `chains` chains of `tiles` tiles one behind the other.
struct ScanWork {
  std::int64_t chains;
  std::int64_t tiles;
};

/// CTAs of a cluster that share a chain, each with every ranks-th tile: 1, 2, 4, 8 or 16.
/// `multiprocessors` of the device hold `blocks_per_sm` CTAs each.
int scan_ranks(const ScanWork& work, int blocks_per_sm, int multiprocessors);

}  // namespace tandem::cuda
