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

}  // namespace tandem::cuda
