#include "cuda/parts/warp_sums.cuh"

#include <set>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

struct Sums {
  float all, up_to, before, last, behind;
};

__global__ void sum_every_way(const float* values, Sums* sums) {
  const float value = values[threadIdx.x];
  const float up_to = inclusive_sum(value);
  sums[threadIdx.x] = {sum_warp(value), up_to, sum_before(up_to), last_lane(up_to),
                       sum_behind(value)};
}

using GpuWarpSums = GpuPart;

/// Whole numbers, which fp32 adds exactly in any order.
TEST_F(GpuWarpSums, EveryLaneGetsItsOwnWarpsLanes) {
  std::vector<float> values;
  std::mt19937 generator(1);
  for (int i = 0; i < kThreads; ++i) values.push_back(static_cast<int>(generator() % 2001) - 1000);
  DeviceArray<float> in(values);
  DeviceArray<Sums> out(kThreads);
  sum_every_way<<<1, kThreads>>>(in.device, out.device);
  finish();
  out.download();
  for (int i = 0; i < kThreads; ++i) {
    float all = 0, before = 0;
    for (int j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
      all += values[j];
      if (j < i) before += values[j];
    }
    const Sums& got = out.host[i];
    EXPECT_EQ(got.all, all) << i;
    EXPECT_EQ(got.up_to, before + values[i]) << i;
    EXPECT_EQ(got.before, before) << i;
    EXPECT_EQ(got.last, all) << i;
    EXPECT_EQ(got.behind, all - before - values[i]) << i;
  }
}

TEST_F(GpuWarpSums, EveryLaneGetsTheSameBits) {
  DeviceArray<float> in(random_elements<float>(kThreads, 2));
  DeviceArray<Sums> out(kThreads);
  sum_every_way<<<1, kThreads>>>(in.device, out.device);
  finish();
  out.download();
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    double expected = 0;
    std::set<float> all, last;
    for (int i = 32 * warp; i < 32 * warp + 32; ++i) {
      expected += in.host[i];
      all.insert(out.host[i].all);
      last.insert(out.host[i].last);
    }
    ASSERT_EQ(all.size(), 1u);
    ASSERT_EQ(last.size(), 1u);
    EXPECT_NEAR(*all.begin(), expected, 1e-5);
    EXPECT_NEAR(*last.begin(), expected, 1e-5);
  }
}

}  // namespace
}  // namespace tandem::cuda
