// Maps: what some tokens do to one channel's state.
#pragma once

namespace tandem::cuda::scan {

/// The map s -> factor s + sum.
struct ScanMap {
  float factor = 1.0f;
  float sum = 0.0f;
};

/// Applies a map to a state. A factor of 0 forgets, inf and NaN included. Without kExact that is
/// left out: the result is then right if it is finite, which can be seen afterwards, since nothing
/// makes an inf or NaN finite again.
template <bool kExact = true>
__device__ inline float apply(ScanMap map, float state) {
  const float kept = fmaf(map.factor, state, map.sum);
  return kExact && map.factor == 0.0f ? map.sum : kept;
}

/// Composes two maps: `first`, then `next`.
template <bool kExact = true>
__device__ inline ScanMap compose(ScanMap first, ScanMap next) {
  const float factor = next.factor * first.factor;
  return {kExact && next.factor == 0.0f ? 0.0f : factor, apply<kExact>(next, first.sum)};
}

}  // namespace tandem::cuda::scan
