// What some tokens do to one channel's state.
#pragma once

namespace tandem::cuda {

/// s -> factor s + sum.
struct ScanMap {
  float factor = 1.0f;
  float sum = 0.0f;
};

/// A factor of 0 forgets, inf and NaN included. !kExact: right if the result is finite, which can
/// be seen afterwards: nothing makes a NaN or an infinity finite again, which a factor of 0 should.
template <bool kExact = true>
__device__ inline float apply(ScanMap map, float state) {
  const float kept = fmaf(map.factor, state, map.sum);
  return kExact && map.factor == 0.0f ? map.sum : kept;
}

/// `first`, then `next`.
template <bool kExact = true>
__device__ inline ScanMap compose(ScanMap first, ScanMap next) {
  const float factor = next.factor * first.factor;
  return {kExact && next.factor == 0.0f ? 0.0f : factor, apply<kExact>(next, first.sum)};
}

}  // namespace tandem::cuda
