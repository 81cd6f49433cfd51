// Where the threads of a CTA are in a tile of a scan, and how maps become states over a warp, a CTA
// and a cluster whose CTAs have neighbouring tiles.
#pragma once

#include <cuda_runtime.h>

#include "cuda/scan/channels.cuh"
#include "cuda/scan/map.cuh"

namespace tandem::cuda {

/// Lanes that are kLanes apart have neighbouring tokens of the same channels. On entry a thread's
/// own maps, on return those of all of the warp's tokens before its own; those of the whole warp go
/// to `of_warp` (channels of the thread's row).
template <int kLanes>
__device__ inline void scan_warp(ScanMap (&maps)[kChannels], ScanMap* of_warp) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) {
#pragma unroll
    for (ScanMap& map : maps) {
      const ScanMap earlier = shuffle_up(map, distance);
      if (lane >= distance) map = compose(earlier, map);
    }
  }
  if (lane >= 32 - kLanes) {
#pragma unroll
    for (int j = 0; j < kChannels; j += 2) {
      *reinterpret_cast<float4*>(&of_warp[j]) = {maps[j].factor, maps[j].sum, maps[j + 1].factor,
                                                 maps[j + 1].sum};
    }
  }
#pragma unroll
  for (ScanMap& map : maps) {
    const ScanMap earlier = shuffle_up(map, kLanes);
    map = lane >= kLanes ? earlier : ScanMap{};
  }
}

}  // namespace tandem::cuda
