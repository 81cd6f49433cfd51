#include "cuda/parts/barrier.cuh"

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

/// Warpgroups alternate: each doubles and adds, in turns that the barriers enforce.
__global__ void alternate(int* result) {
  __shared__ Barrier turn[2];
  __shared__ int value;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    value = 1;
    turn[0].init(128);
    turn[1].init(128);
    fence_barriers_initialised();
  }
  __syncthreads();
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (group == 1) turn[0].wait(i & 1);
    if (group == 0 && i > 0) turn[1].wait((i - 1) & 1);
    sync_warpgroup(group);
    if (threadIdx.x % 128 == 77) value = group == 0 ? 2 * value : value + 1;
    sync_warpgroup(group);
    turn[group].arrive();
  }
  __syncthreads();
  if (threadIdx.x == 0) *result = value;
}

using GpuBarrier = GpuPart;

TEST_F(GpuBarrier, OrdersTwoWarpgroups) {
  DeviceArray<int> result(1);
  alternate<<<1, 256>>>(result.device);
  finish();
  int expected = 1;
  for (int i = 0; i < 8; ++i) expected = 2 * expected + 1;
  EXPECT_EQ(result.download()[0], expected);
}

}  // namespace
}  // namespace tandem::cuda
