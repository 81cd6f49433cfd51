#include "cuda/parts/exp2.cuh"

#include <cmath>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

struct Values {
  float power_of_2, reciprocal;
};

__global__ void evaluate(const float* x, Values* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = {fast_exp2(x[i]), reciprocal(x[i])};
}

class GpuExp2 : public GpuPart {
 protected:
  static std::vector<Values> values_of(const std::vector<float>& x) {
    DeviceArray<float> in(x);
    DeviceArray<Values> out(x.size());
    evaluate<<<static_cast<unsigned>(x.size() + 255) / 256, 256>>>(in.device, out.device,
                                                                   static_cast<int>(x.size()));
    finish();
    return out.download();
  }

  static std::vector<float> spread(float low, float high) {
    std::mt19937 generator(4);
    std::uniform_real_distribution<float> uniform(low, high);
    std::vector<float> x(100000);
    for (float& value : x) value = uniform(generator);
    return x;
  }
};

TEST_F(GpuExp2, PowersOfTwo) {
  const std::vector<float> x = spread(-125.9f, 127.9f);
  const std::vector<Values> values = values_of(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp2(static_cast<double>(x[i]));
    ASSERT_NEAR(values[i].power_of_2, expected, std::ldexp(expected, -22)) << x[i];
  }
  EXPECT_EQ(values_of({-126.5f})[0].power_of_2, 0);
}

TEST_F(GpuExp2, Reciprocals) {
  const std::vector<float> x = spread(-1e6f, 1e6f);
  const std::vector<Values> values = values_of(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = 1 / static_cast<double>(x[i]);
    ASSERT_NEAR(values[i].reciprocal, expected, std::abs(std::ldexp(expected, -22))) << x[i];
  }
}

}  // namespace
}  // namespace tandem::cuda
