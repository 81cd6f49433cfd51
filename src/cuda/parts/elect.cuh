// Which thread of a warp starts copies.
#pragma once

#include <cute/arch/cluster_sm90.hpp>

namespace tandem::cuda {

/// Whether this is the thread that copies, of warp `warp` of the CTA. For all threads of a warp.
///
/// why elected: ptxas then knows that one thread copies, and makes no loop around each TMA copy, of
/// a dozen instructions each.
__device__ inline bool elected_of_warp(int warp) {
  return __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0) == warp && cute::elect_one_sync();
}

}  // namespace tandem::cuda
