// Sums over the lanes of a warp, always in the same order. Every lane calls.
#pragma once

namespace tandem::cuda {

/// Sums over all lanes; every lane gets the sum.
__device__ inline float sum_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}

/// Sums over the lanes up to this one.
__device__ inline float inclusive_sum(float value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float earlier = __shfl_up_sync(0xFFFFFFFFu, value, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) value += earlier;
  }
  return value;
}

/// Turns an inclusive sum into the sum over the lanes before this one, or over all lanes.
__device__ inline float sum_before(float inclusive) {
  const float before = __shfl_up_sync(0xFFFFFFFFu, inclusive, 1);
  return threadIdx.x % 32 == 0 ? 0.0f : before;
}
__device__ inline float last_lane(float inclusive) {
  return __shfl_sync(0xFFFFFFFFu, inclusive, 31);
}

/// Sums over the lanes behind this one.
__device__ inline float sum_behind(float value) {
  const int lane = threadIdx.x % 32;
  float sum = __shfl_down_sync(0xFFFFFFFFu, value, 1);
  if (lane == 31) sum = 0.0f;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float later = __shfl_down_sync(0xFFFFFFFFu, sum, distance);
    if (lane + distance < 32) sum += later;
  }
  return sum;
}

}  // namespace tandem::cuda
