// What some tokens do to one channel's state.
#pragma once

namespace tandem::cuda {

/// s -> factor s + sum.
struct ScanMap {
  float factor = 1.0f;
  float sum = 0.0f;
};

/// A factor of 0 forgets, inf and NaN included.
__device__ inline float apply(ScanMap map, float state) {
  return map.factor == 0.0f ? map.sum : fmaf(map.factor, state, map.sum);
}

/// `first`, then `next`.
__device__ inline ScanMap compose(ScanMap first, ScanMap next) {
  return {next.factor == 0.0f ? 0.0f : next.factor * first.factor, apply(next, first.sum)};
}

__device__ inline ScanMap shuffle_up(ScanMap map, int lanes) {
  return {__shfl_up_sync(0xFFFFFFFFu, map.factor, lanes),
          __shfl_up_sync(0xFFFFFFFFu, map.sum, lanes)};
}

}  // namespace tandem::cuda
