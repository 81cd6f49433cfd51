#include "cuda/scan/map.cuh"

#include <cmath>
#include <limits>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda::scan {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A state and two maps, and what becomes of the state.
struct Walk {
  float state;
  ScanMap first, next;
  float one_by_one, at_once;
};

template <bool kExact>
__global__ void take_walks(Walk* walks, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Walk& walk = walks[i];
  walk.one_by_one = apply<kExact>(walk.next, apply<kExact>(walk.first, walk.state));
  walk.at_once = apply<kExact>(compose<kExact>(walk.first, walk.next), walk.state);
}

class GpuScanMap : public GpuPart {
 protected:
  template <bool kExact>
  static std::vector<Walk> take(std::vector<Walk> walks) {
    const int count = static_cast<int>(walks.size());
    DeviceArray<Walk> array(std::move(walks));
    take_walks<kExact><<<(count + 127) / 128, 128>>>(array.device, count);
    finish();
    return array.download();
  }
};

/// Small whole numbers, so that fp32 is exact.
TEST_F(GpuScanMap, CompositionIsTheFirstThenTheNext) {
  std::vector<Walk> walks;
  std::mt19937 generator(3);
  const auto whole = [&] { return static_cast<float>(static_cast<int>(generator() % 201) - 100); };
  for (int i = 0; i < 1000; ++i) {
    walks.push_back({whole(), {whole(), whole()}, {whole(), whole()}, kNan, kNan});
  }
  for (const auto& taken : {take<true>(walks), take<false>(walks)}) {
    for (const Walk& walk : taken) {
      const float between = walk.first.factor * walk.state + walk.first.sum;
      const float expected = walk.next.factor * between + walk.next.sum;
      EXPECT_EQ(walk.one_by_one, expected);
      EXPECT_EQ(walk.at_once, expected);
    }
  }
}

TEST_F(GpuScanMap, AMapOfNothingChangesNothing) {
  for (const Walk& walk : take<true>({{3.5f, {}, {}, 0, 0}, {kInf, {}, {}, 0, 0}})) {
    EXPECT_EQ(walk.one_by_one, walk.state);
    EXPECT_EQ(walk.at_once, walk.state);
  }
}

TEST_F(GpuScanMap, AFactorOfZeroForgetsWhatIsNotFinite) {
  std::vector<Walk> walks;
  for (const float bad : {kInf, -kInf, kNan}) {
    walks.push_back({bad, {1, 2}, {0, 5}, 0, 0});
    walks.push_back({bad, {0, 5}, {1, 0}, 0, 0});
    walks.push_back({1, {1, bad}, {0, 5}, 0, 0});
    walks.push_back({1, {bad, 2}, {0, 5}, 0, 0});
  }
  for (const Walk& walk : take<true>(walks)) {
    EXPECT_EQ(walk.one_by_one, 5);
    EXPECT_EQ(walk.at_once, 5);
  }
  // What can be seen afterwards, and then done again exactly.
  for (const Walk& walk : take<false>(walks)) {
    EXPECT_FALSE(std::isfinite(walk.one_by_one));
    EXPECT_FALSE(std::isfinite(walk.at_once));
  }
}

}  // namespace
}  // namespace tandem::cuda::scan
