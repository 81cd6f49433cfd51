// The fp64 definition of causal_conv1d: by hand, as torch's conv1d has it, and its gradients
// against central differences of the fp64 forward, element by element.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cli/cases/random.h"
#include "reference/causal_conv1d.h"

namespace tandem {
namespace {

constexpr std::int64_t kB = 2, kT = 6;
constexpr int kD = 3, kW = 3;
constexpr double kStep = 1e-5;

std::vector<double> values(std::int64_t count, const char* name) {
  const tools::RandomStream random(11, name);
  std::vector<double> out(count);
  for (std::int64_t i = 0; i < count; ++i) out[i] = random.normal(i);
  return out;
}

struct Problem {
  explicit Problem(bool silu) {
    CausalConv1dForwardProblem& f = problem.forward;
    f.dtype = DType::kFloat64;
    f.B = f.N = kB;
    f.T = kT;
    f.D = kD;
    f.W = kW;
    f.silu = silu;
    f.weight = {weight.data(), kW, DType::kFloat64};
    f.bias = {bias.data(), 1, DType::kFloat64};
    f.x = {x.data(), kT * kD, kD};
    f.initial_state = state_of(initial);
    problem.d_out = {d_out.data(), kT * kD, kD};
    problem.d_final_state = state_of(d_final);
  }

  static ConvState state_of(std::vector<double>& state) {
    return {state.data(), kD * (kW - 1), kW - 1, 1};
  }

  /// Returns what the loss depends on through all sequences of channel d.
  double loss(int d) const {
    const CausalConv1dForwardProblem& f = problem.forward;
    double sum = 0;
    for (std::int64_t n = 0; n < f.N; ++n) {
      const reference::ConvSpan span = reference::conv_span(f, n);
      const reference::ConvChannel c = reference::causal_conv1d_forward_one(f, n, d);
      for (std::int64_t t = 0; t < span.length(); ++t) {
        sum += c.out[t] * d_out[(span.b * f.T + span.begin + t) * kD + d];
      }
      for (int j = 0; j < kW - 1; ++j) {
        sum += c.final_state[j] * d_final[(n * kD + d) * (kW - 1) + j];
      }
    }
    return sum;
  }

  double difference(double& value, int d) const {
    const double kept = value;
    value = kept + kStep;
    const double above = loss(d);
    value = kept - kStep;
    const double below = loss(d);
    value = kept;
    return (above - below) / (2 * kStep);
  }

  std::vector<double> x = values(kB * kT * kD, "x"), weight = values(kD * kW, "weight");
  std::vector<double> bias = values(kD, "bias"), d_out = values(kB * kT * kD, "d_out");
  std::vector<double> initial = values(8 * kD * (kW - 1), "initial");
  std::vector<double> d_final = values(8 * kD * (kW - 1), "d_final");
  CausalConv1dBackwardProblem problem;
};

void compare(Problem& p) {
  const CausalConv1dForwardProblem& f = p.problem.forward;
  constexpr double kNear = 1e-7;
  for (int d = 0; d < kD; ++d) {
    std::vector<double> d_weight(kW);
    double d_bias = 0;
    for (std::int64_t n = 0; n < f.N; ++n) {
      const auto g = reference::causal_conv1d_backward_one(p.problem, n, d);
      const reference::ConvSpan span = reference::conv_span(f, n);
      for (std::int64_t t = 0; t < span.length(); ++t) {
        double& x = p.x[(span.b * f.T + span.begin + t) * kD + d];
        EXPECT_NEAR(g.dx[t], p.difference(x, d), kNear);
      }
      for (int j = 0; j < kW - 1; ++j) {
        double& state = p.initial[(n * kD + d) * (kW - 1) + j];
        EXPECT_NEAR(g.d_initial_state[j], p.difference(state, d), kNear);
      }
      for (int w = 0; w < kW; ++w) d_weight[w] += g.d_weight[w];
      d_bias += g.d_bias;
    }
    for (int w = 0; w < kW; ++w) {
      EXPECT_NEAR(d_weight[w], p.difference(p.weight[d * kW + w], d), kNear);
    }
    EXPECT_NEAR(d_bias, p.difference(p.bias[d], d), kNear);
  }
}

TEST(CausalConv1dDefinition, IsTheDerivativeOfTheForward) {
  for (const bool silu : {false, true}) {
    Problem p(silu);
    compare(p);
  }
}

/// Sequences of 2, 0, 1 and 7 tokens, of fewer and of more than W - 1; tokens before and behind.
TEST(CausalConv1dDefinition, WithSequences) {
  const std::vector<std::int32_t> offsets = {1, 3, 3, 4, 11};
  for (const bool silu : {false, true}) {
    Problem p(silu);
    p.problem.forward.B = 1;
    p.problem.forward.T = kB * kT;
    p.problem.forward.N = 4;
    p.problem.forward.cu_seqlens = offsets.data();
    compare(p);
  }
}

TEST(CausalConv1dDefinition, ByHand) {
  std::vector<double> x = {1, 2, 3}, weight = {10, 100, 1000}, bias = {5}, state = {7, 8};
  CausalConv1dForwardProblem p;
  p.dtype = DType::kFloat64;
  p.B = p.N = 1;
  p.T = 3;
  p.D = 1;
  p.W = 3;
  p.weight = {weight.data(), 3, DType::kFloat64};
  p.bias = {bias.data(), 1, DType::kFloat64};
  p.x = {x.data(), 3, 1};
  p.initial_state = {state.data(), 2, 2, 1};
  const reference::ConvChannel c = reference::causal_conv1d_forward_one(p, 0, 0);
  EXPECT_EQ(c.out,
            (std::vector<double>{70 + 800 + 1000 + 5, 80 + 100 + 2000 + 5, 10 + 200 + 3005}));
  EXPECT_EQ(c.final_state, (std::vector<double>{2, 3}));
  p.T = 1;
  EXPECT_EQ(reference::causal_conv1d_forward_one(p, 0, 0).final_state, (std::vector<double>{8, 1}));
}

}  // namespace
}  // namespace tandem
