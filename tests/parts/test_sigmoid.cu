#include "cuda/parts/sigmoid.cuh"

#include <cmath>
#include <limits>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda {
namespace {

struct Values {
  float value, complement;
};

__global__ void evaluate(const float* z, Values* values, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  const Sigmoid sigmoid(z[i]);
  values[i] = {sigmoid.value, sigmoid.complement};
}

class GpuSigmoid : public GpuPart {
 protected:
  static std::vector<Values> values_of(const std::vector<float>& z) {
    DeviceArray<float> in(z);
    DeviceArray<Values> out(z.size());
    evaluate<<<1, 1024>>>(in.device, out.device, static_cast<int>(z.size()));
    finish();
    return out.download();
  }
};

TEST_F(GpuSigmoid, AndItsComplementAreExact) {
  std::vector<float> z;
  for (float at = -80.0f; at <= 80.0f; at += 0.25f) z.push_back(at);
  const std::vector<Values> values = values_of(z);
  for (std::size_t i = 0; i < z.size(); ++i) {
    EXPECT_NEAR(values[i].value * (1 + std::exp(-double{z[i]})), 1.0, 1e-5) << z[i];
    EXPECT_NEAR(values[i].complement * (1 + std::exp(double{z[i]})), 1.0, 1e-5) << z[i];
  }
}

TEST_F(GpuSigmoid, EndsAtZeroAndOne) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<Values> values = values_of({-kInf, kInf, -1e4f, 1e4f, std::nanf("")});
  for (const int i : {0, 2}) {
    EXPECT_EQ(values[i].value, 0.0f);
    EXPECT_EQ(values[i].complement, 1.0f);
  }
  for (const int i : {1, 3}) {
    EXPECT_EQ(values[i].value, 1.0f);
    EXPECT_EQ(values[i].complement, 0.0f);
  }
  EXPECT_TRUE(std::isnan(values[4].value));
}

}  // namespace
}  // namespace tandem::cuda
