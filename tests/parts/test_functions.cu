#include "cuda/scan/functions.cuh"

#include <cmath>
#include <functional>
#include <limits>

#include "tests/parts/gpu_test.h"

namespace tandem::cuda::scan {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kSmallest = std::numeric_limits<float>::min();

struct Values {
  float exact_exp, exp, exact_logistic, logistic;
};

__global__ void evaluate(const float* x, Values* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  values[i] = {exp_flushed<true>(x[i]), exp_flushed<false>(x[i]), logistic<true>(x[i]),
               logistic<false>(x[i])};
}

class GpuScanFunctions : public GpuPart {
 protected:
  static std::vector<Values> values_of(const std::vector<float>& x) {
    DeviceArray<float> in(x);
    DeviceArray<Values> out(x.size());
    evaluate<<<static_cast<unsigned>(x.size() + 255) / 256, 256>>>(in.device, out.device,
                                                                   static_cast<int>(x.size()));
    finish();
    return out.download();
  }

  /// As many near 0 as from end to end.
  static std::vector<float> spread(float low, float high) {
    std::mt19937 generator(4);
    std::uniform_real_distribution<float> uniform(low, high);
    std::vector<float> x;
    for (int i = 0; i < 100000; ++i) x.push_back(uniform(generator) / (i % 2 == 0 ? 1 : 64));
    return x;
  }

  /// `limit(x)`: the relative error of what is not below 2^-126.
  static void check(const std::vector<float>& x, float Values::*member,
                    const std::function<double(double)>& function,
                    const std::function<double(double)>& limit) {
    const std::vector<Values> values = values_of(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = function(x[i]);
      const double got = values[i].*member;
      const double flushed = std::abs(expected) < 1.001 * kSmallest ? kSmallest : 0;
      ASSERT_LE(std::abs(got - expected), limit(x[i]) * std::abs(expected) + flushed)
          << x[i] << ": " << got << " instead of " << expected;
    }
  }
};

double exp_of(double x) { return std::exp(x); }
double logistic_of(double x) { return 1 / (1 + std::exp(-x)); }
double of_exact(double) { return 1e-7; }
double of_approximate(double x) {
  return std::ldexp(1.0, -22) + std::ldexp(1.5, -24) * std::abs(x);
}

TEST_F(GpuScanFunctions, Exponentials) {
  check(spread(-100, 88.3f), &Values::exact_exp, exp_of, of_exact);
  check(spread(-100, 88.3f), &Values::exp, exp_of, of_approximate);
}

/// Two roundings come on top of the exponential's: of the sum and of its reciprocal.
TEST_F(GpuScanFunctions, LogisticFunction) {
  const auto and_roundings = [](const auto& limit, double roundings) {
    return [=](double x) { return limit(x) + std::ldexp(roundings, -24); };
  };
  check(spread(-100, 100), &Values::exact_logistic, logistic_of, and_roundings(of_exact, 2));
  check(spread(-100, 100), &Values::logistic, logistic_of, and_roundings(of_approximate, 3));
}

TEST_F(GpuScanFunctions, PowersBelowTheNormalRangeAreZero) {
  for (const Values& values : values_of({-126.5f, -87.5f, -140, -100})) {
    EXPECT_EQ(values.exact_exp, 0);
    EXPECT_EQ(values.exp, 0);
  }
}

TEST_F(GpuScanFunctions, Limits) {
  const std::vector<Values> values =
      values_of({-kInf, -1e30f, -200, 0, 89, 1e30f, kInf, std::nanf("")});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(values[i].exact_exp, 0) << i;
    EXPECT_EQ(values[i].exp, 0) << i;
    EXPECT_EQ(values[i].exact_logistic, 0) << i;
    EXPECT_EQ(values[i].logistic, 0) << i;
  }
  EXPECT_EQ(values[3].exact_exp, 1);
  EXPECT_EQ(values[3].exp, 1);
  EXPECT_EQ(values[3].exact_logistic, 0.5f);
  EXPECT_FLOAT_EQ(values[3].logistic, 0.5f);
  for (int i = 4; i < 7; ++i) {
    EXPECT_EQ(values[i].exact_exp, kInf) << i;
    EXPECT_EQ(values[i].exp, kInf) << i;
    EXPECT_EQ(values[i].exact_logistic, 1) << i;
    EXPECT_EQ(values[i].logistic, 1) << i;
  }
  EXPECT_TRUE(std::isnan(values[7].exact_exp) && std::isnan(values[7].exp));
  EXPECT_TRUE(std::isnan(values[7].exact_logistic) && std::isnan(values[7].logistic));
}

}  // namespace
}  // namespace tandem::cuda::scan
