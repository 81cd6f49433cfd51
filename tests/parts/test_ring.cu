#include "cuda/parts/ring.cuh"

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kItems = 1000;

/// One warp writes 32 values per turn, two warps add them up: each value must be seen once by both.
__global__ void pass_through_ring(long long* sums) {
  __shared__ Ring<kStages> ring;
  __shared__ int values[kStages][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    ring.init(32, 64);
    fence_barriers_initialised();
  }
  __syncthreads();
  Ring<kStages>::Position at;
  long long sum = 0;
  for (int item = 0; item < kItems; ++item, at.advance()) {
    if (warp == 0) {
      ring.wait_empty(at);
      values[at.stage][lane] = item * 32 + lane;
      ring.full[at.stage].arrive();
    } else {
      ring.wait_full(at);
      sum += static_cast<long long>(item + 1) * values[at.stage][31 - lane];
      ring.empty[at.stage].arrive();
    }
  }
  sums[threadIdx.x] = sum;
}

using GpuRing = GpuPart;

TEST_F(GpuRing, EveryItemReachesEveryConsumerInOrder) {
  DeviceArray<long long> sums(96);
  pass_through_ring<<<1, 96>>>(sums.device);
  finish();
  sums.download();
  for (int lane = 0; lane < 32; ++lane) {
    long long expected = 0;
    for (long long item = 0; item < kItems; ++item)
      expected += (item + 1) * (item * 32 + 31 - lane);
    EXPECT_EQ(sums.host[32 + lane], expected);
    EXPECT_EQ(sums.host[64 + lane], expected);
  }
}

}  // namespace
}  // namespace tandem::cuda
