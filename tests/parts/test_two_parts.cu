#include "cuda/parts/two_parts.cuh"

#include <cmath>
#include <limits>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Joined again, both parts having been rounded.
template <class Element>
__global__ void part_and_join(const float* values, float* joined, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const auto rounded = static_cast<Element>(values[i]);
  const auto rest = static_cast<Element>(rest_of<Element>(values[i]));
  joined[i] = join_parts<Element>(static_cast<float>(rounded), static_cast<float>(rest));
}

class GpuTwoParts : public GpuPart {
 protected:
  template <class Element>
  static std::vector<float> joined(const std::vector<float>& values) {
    DeviceArray<float> in(values);
    DeviceArray<float> out(values.size());
    part_and_join<Element><<<1, 1024>>>(in.device, out.device, static_cast<int>(values.size()));
    finish();
    return out.download();
  }

  /// `precision`: of a value; `least`: the difference that is allowed whatever the value.
  template <class Element>
  static void expect_near(float scale, double precision, double least) {
    std::vector<float> values = random_elements<float>(1024, 7);
    for (float& value : values) value *= scale;
    const std::vector<float> back = joined<Element>(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(back[i], values[i], std::abs(values[i]) * precision + least) << scale;
    }
  }
};

TEST_F(GpuTwoParts, HaveTwiceThePrecision) {
  for (const float scale : {1e-30f, 1e-6f, 1.0f, 1e6f, 1e30f}) {
    expect_near<__nv_bfloat16>(scale, std::ldexp(1.0, -17), 0.0);
  }
  for (const float scale : {1e-7f, 1e-4f, 1.0f, 1e4f}) {
    expect_near<__half>(scale, std::ldexp(1.0, -22), std::ldexp(1.0, -35));
  }
}

TEST_F(GpuTwoParts, KeepWhatIsNotFinite) {
  const std::vector<float> values{kInf, -kInf, std::nanf(""), 0.0f};
  for (const auto& back : {joined<__nv_bfloat16>(values), joined<__half>(values)}) {
    EXPECT_EQ(back[0], kInf);
    EXPECT_EQ(back[1], -kInf);
    EXPECT_TRUE(std::isnan(back[2]));
    EXPECT_EQ(back[3], 0.0f);
  }
}

TEST_F(GpuTwoParts, AreInfiniteWhereTheFirstOverflows) {
  const std::vector<float> back = joined<__half>({65519.0f, 65521.0f, -1e6f});
  EXPECT_EQ(back[0], 65519.0f);
  EXPECT_EQ(back[1], kInf);
  EXPECT_EQ(back[2], -kInf);
}

}  // namespace
}  // namespace tandem::cuda
