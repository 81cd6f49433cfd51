// The fp64 definition of linear_scan's gradients by u and the weight, put together from dx as
// reference/linear_scan.h says, against central differences of the fp64 forward.
// test_gated_scan_definition.cpp does the others.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cli/cases/random.h"
#include "reference/linear_scan.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 5;
constexpr int kInput = 3, kD = 4;
constexpr double kStep = 1.0 / 1024;

/// Multiples of 1/256 in (-4,4): a step is exact in fp32.
std::vector<float> values(std::int64_t count, const char* name) {
  const tools::RandomStream random(11, name);
  std::vector<float> out(count);
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(std::round(std::fmod(random.normal(i), 4.0) * 256) / 256);
  }
  return out;
}

struct Problem {
  Problem() {
    LinearScanForwardProblem& f = problem.forward;
    f.dtype = f.decay_dtype = DType::kFloat32;
    f.B = f.N = kB;
    f.T = kT;
    f.D = kD;
    f.d = kInput;
    f.log_decay = true;
    const auto tensor = [](std::vector<float>& x, std::int64_t width) {
      return TokenTensor{x.data(), kT * width, width};
    };
    f.u = tensor(u, kInput);
    f.weight = {weight.data(), kInput};
    f.decay = tensor(decay, kD);
    f.gate = tensor(gate, kD);
    problem.d_out = tensor(d_out, kD);
    for (float& g : decay) g = -std::fabs(g);
  }

  double loss() const {
    double sum = 0;
    for (std::int64_t n = 0; n < kB; ++n) {
      for (int d = 0; d < kD; ++d) {
        const auto c = reference::linear_scan_forward_one(problem.forward, n, d);
        for (std::int64_t t = 0; t < kT; ++t) sum += c.out[t] * d_out[(n * kT + t) * kD + d];
      }
    }
    return sum;
  }

  double difference(float& value) const {
    const float kept = value;
    value = static_cast<float>(kept + kStep);
    const double above = loss();
    value = static_cast<float>(kept - kStep);
    const double below = loss();
    value = kept;
    return (above - below) / (2 * kStep);
  }

  std::vector<float> u = values(kB * kT * kInput, "u"), weight = values(kD * kInput, "weight");
  std::vector<float> decay = values(kB * kT * kD, "decay"), gate = values(kB * kT * kD, "gate");
  std::vector<float> d_out = values(kB * kT * kD, "d_out");
  LinearScanBackwardProblem problem;
};

TEST(LinearScanDefinition, IsTheDerivativeOfTheForward) {
  Problem p;
  std::vector<double> du(p.u.size()), d_weight(p.weight.size());
  for (std::int64_t n = 0; n < kB; ++n) {
    for (int d = 0; d < kD; ++d) {
      const auto gradients = reference::linear_scan_backward_one(p.problem, n, d);
      EXPECT_EQ(gradients.dx, reference::linear_scan_dx_one(p.problem, n, d));
      for (std::int64_t t = 0; t < kT; ++t) {
        for (int i = 0; i < kInput; ++i) {
          const std::int64_t at = (n * kT + t) * kInput + i;
          du[at] += gradients.dx[t] * p.weight[d * kInput + i];
          d_weight[d * kInput + i] += gradients.dx[t] * p.u[at];
        }
      }
    }
  }
  for (std::size_t i = 0; i < du.size(); ++i) EXPECT_NEAR(du[i], p.difference(p.u[i]), 1e-8);
  for (std::size_t i = 0; i < d_weight.size(); ++i) {
    EXPECT_NEAR(d_weight[i], p.difference(p.weight[i]), 1e-8);
  }
}

}  // namespace
}  // namespace tandem
