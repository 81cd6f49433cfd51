// The fp64 definition of gated_output: against numbers made by hand, and its gradients against
// central differences of itself.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cli/cases/random.h"
#include "reference/gated_output.h"

namespace tandem {
namespace {

using namespace reference;

constexpr OutputGate kGates[] = {OutputGate::kNone, OutputGate::kSilu, OutputGate::kSigmoid};
constexpr OutputNorm kNorms[] = {OutputNorm::kNone, OutputNorm::kLayerNorm, OutputNorm::kRmsNorm};

TensorView tensor(std::vector<double>& values, const Dims& shape) {
  return TensorView::contiguous(values.data(), DType::kFloat64, shape);
}

TEST(GatedOutputDefinition, HasTheValuesOfItsGates) {
  const auto expect = [](OutputGate activation, double g, double value, double slope) {
    const OutputGateValue got = output_gate_value(activation, g);
    EXPECT_NEAR(got.value, value, 1e-12) << static_cast<int>(activation) << " " << g;
    EXPECT_NEAR(got.slope, slope, 1e-12) << static_cast<int>(activation) << " " << g;
  };
  // sigmoid(log 3) = 3/4.
  const double l = std::log(3.0);
  expect(OutputGate::kNone, -3, -3, 1);
  expect(OutputGate::kSilu, 0, 0, 0.5);
  expect(OutputGate::kSilu, l, 0.75 * l, 0.75 + l * 3 / 16);
  expect(OutputGate::kSilu, -l, -0.25 * l, 0.25 - l * 3 / 16);
  expect(OutputGate::kSigmoid, 0, 0.5, 0.25);
  expect(OutputGate::kSigmoid, l, 0.75, 3.0 / 16);
  expect(OutputGate::kSigmoid, -l, 0.25, 3.0 / 16);
}

/// One row of two columns in and out.
struct Pair {
  std::vector<double> o = {3, -4}, gate = {2, 0.5}, weight = {1, 1, 2, -1}, residual = {1, 2},
                      bias = {0.5, -0.5}, group = {2, 3}, one = {2}, norm_weight = {4, 6},
                      norm_bias = {1, -1};
  GatedOutputForwardArgs args{.o = tensor(o, {1, 2}), .weight = tensor(weight, {2, 2}), .out = {}};

  GatedInputRow input() const { return gated_input_row(args, GatedOutputWeights(args), 0); }
  std::vector<double> sum() const {
    return output_sum_row(args, GatedOutputWeights(args), input().a, 0);
  }
  OutputNormRow norm(const std::vector<double>& sum) const {
    return output_norm_row(args, GatedOutputWeights(args), sum);
  }
};

using Row = std::vector<double>;

TEST(GatedOutputDefinition, IsTheGatedProduct) {
  Pair pair;
  EXPECT_EQ(pair.sum(), (Row{-1, 10}));
  pair.args.residual = tensor(pair.residual, {1, 2});
  EXPECT_EQ(pair.sum(), (Row{0, 12}));
  pair.args.bias = tensor(pair.bias, {2});
  EXPECT_EQ(pair.sum(), (Row{0.5, 11.5}));
  pair.args.gate = tensor(pair.gate, {1, 2});
  EXPECT_EQ(pair.input().a, (Row{6, -2}));
  EXPECT_EQ(pair.sum(), (Row{5.5, 15.5}));
  EXPECT_EQ(pair.norm({5.5, 15.5}).out, (Row{5.5, 15.5}));
}

TEST(GatedOutputDefinition, NormalizesGroupsBeforeAndBehindTheGate) {
  Pair pair;
  pair.args.group_norm_weight = tensor(pair.group, {2});
  pair.args.group_width = 2;
  // The mean of 9 and 16 and 3.5 are 16.
  pair.args.group_eps = 3.5;
  EXPECT_EQ(pair.input().group_rstd, (Row{0.25}));
  EXPECT_EQ(pair.input().n, (Row{0.75, -1}));
  EXPECT_EQ(pair.input().a, (Row{1.5, -3}));
  pair.args.gate = tensor(pair.gate, {1, 2});
  EXPECT_EQ(pair.input().a, (Row{3, -1.5}));
  // The mean of 36 and 4 and 5 are 25.
  pair.args.norm_behind_gate = true;
  pair.args.group_eps = 5;
  EXPECT_DOUBLE_EQ(pair.input().a[0], 2.4);
  EXPECT_DOUBLE_EQ(pair.input().a[1], -1.2);
  // Groups of one column with one weight; rows of zeros.
  pair.args.norm_behind_gate = false;
  pair.args.gate.reset();
  pair.args.group_norm_weight = tensor(pair.one, {1});
  pair.args.group_width = 1;
  pair.args.group_eps = 0;
  EXPECT_EQ(pair.input().a, (Row{2, -2}));
  pair.o = {0, 0};
  EXPECT_TRUE(std::isnan(pair.input().a[0]));
  pair.args.group_eps.reset();
  EXPECT_EQ(pair.input().a, (Row{0, 0}));
  EXPECT_NEAR(pair.input().group_rstd[1], 1000, 1e-9);  // of the default eps
}

TEST(GatedOutputDefinition, NormalizesTheSum) {
  Pair pair;
  pair.args.norm = OutputNorm::kLayerNorm;
  pair.args.eps = 12;
  // The variance of 1 and 5 and 12 are 16.
  EXPECT_EQ(pair.norm({1, 5}).mean, 3);
  EXPECT_EQ(pair.norm({1, 5}).rstd, 0.25);
  EXPECT_EQ(pair.norm({1, 5}).out, (Row{-0.5, 0.5}));
  pair.args.norm_weight = tensor(pair.norm_weight, {2});
  EXPECT_EQ(pair.norm({1, 5}).out, (Row{-2, 3}));
  pair.args.norm_bias = tensor(pair.norm_bias, {2});
  EXPECT_EQ(pair.norm({1, 5}).out, (Row{-1, 2}));
  EXPECT_EQ(pair.norm({7, 7}).out, (Row{1, -1}));
  pair.args.norm = OutputNorm::kRmsNorm;
  pair.args.norm_bias.reset();
  pair.args.eps = 3.5;
  EXPECT_EQ(pair.norm({3, -4}).mean, 0);
  EXPECT_EQ(pair.norm({3, -4}).out, (Row{3, -6}));
  pair.args.eps.reset();
  EXPECT_NEAR(pair.norm({0, 0}).rstd, 1000, 1e-9);  // of the default eps
}

/// One row, everything in fp64.
struct Call {
  static constexpr int kIn = 6, kOut = 3, kWidth = 2;

  Call(OutputGate activation, OutputNorm norm, bool has_gate, bool groups, bool behind,
       bool repeats) {
    const tools::RandomStream random(7, "gated_output");
    std::uint64_t next = 0;
    const auto fill = [&](std::vector<double>& values, int count) {
      values.resize(count);
      for (double& value : values) value = random.normal(next++);
    };
    for (auto* values : {&o, &gate}) fill(*values, kIn);
    for (auto* values : {&residual, &bias, &norm_weight, &norm_bias, &d_out, &d_sum})
      fill(*values, kOut);
    fill(weight, kIn * kOut);
    fill(group_weight, repeats ? kWidth : kIn);
    args = {.o = tensor(o, {1, kIn}), .weight = tensor(weight, {kOut, kIn}), .out = {}};
    args.bias = tensor(bias, {kOut});
    args.residual = tensor(residual, {1, kOut});
    args.norm = norm;
    if (has_gate) args.gate = tensor(gate, {1, kIn});
    if (has_gate) args.gate_activation = activation;
    if (groups) {
      args.group_norm_weight = tensor(group_weight, {std::ssize(group_weight)});
      args.group_width = kWidth;
      args.norm_behind_gate = behind;
    }
    if (norm == OutputNorm::kNone) return;
    args.norm_weight = tensor(norm_weight, {kOut});
    if (norm == OutputNorm::kLayerNorm) args.norm_bias = tensor(norm_bias, {kOut});
  }

  double loss() const {
    const GatedOutputWeights weights(args);
    const Row sum = output_sum_row(args, weights, gated_input_row(args, weights, 0).a, 0);
    const Row out = output_norm_row(args, weights, sum).out;
    double loss = 0;
    for (int j = 0; j < kOut; ++j) loss += out[j] * d_out[j] + sum[j] * d_sum[j];
    return loss;
  }

  double difference(double& value) const {
    constexpr double kStep = 1e-5;
    const double kept = value;
    value = kept + kStep;
    const double above = loss();
    value = kept - kStep;
    const double below = loss();
    value = kept;
    return (above - below) / (2 * kStep);
  }

  void check() {
    constexpr double kLimit = 2e-7;
    const GatedOutputWeights weights(args);
    const GatedInputRow input = gated_input_row(args, weights, 0);
    const OutputNormRow norm =
        output_norm_row(args, weights, output_sum_row(args, weights, input.a, 0));
    const Row d_residual = output_norm_gradient(args, weights, norm, d_out, d_sum);
    const GatedInputGradient gradient =
        gated_input_gradient(args, weights, input, output_product_gradient(weights, d_residual));
    const auto expect = [&](const Row& got, std::vector<double>& values, const char* name) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(got[i], difference(values[i]), kLimit) << name << " " << i;
      }
    };
    expect(d_residual, residual, "residual");
    expect(d_residual, bias, "bias");
    expect(gradient.d_o, o, "o");
    if (args.gate) expect(gradient.d_gate, gate, "gate");
    Row d_weight, d_norm_weight, d_group(group_weight.size());
    for (int j = 0; j < kOut; ++j) {
      for (int i = 0; i < kIn; ++i) d_weight.push_back(d_residual[j] * input.a[i]);
      d_norm_weight.push_back(d_out[j] * norm.m[j]);
    }
    expect(d_weight, weight, "weight");
    if (args.norm_weight) expect(d_norm_weight, norm_weight, "norm_weight");
    if (args.norm_bias) expect(d_out, norm_bias, "norm_bias");
    if (!args.group_norm_weight) return;
    for (std::size_t i = 0; i < kIn; ++i) d_group[i % d_group.size()] += gradient.d_group_weight[i];
    expect(d_group, group_weight, "group_norm_weight");
  }

  std::vector<double> o, gate, residual, weight, bias, group_weight, norm_weight, norm_bias, d_out,
      d_sum;
  GatedOutputForwardArgs args;
};

TEST(GatedOutputDefinition, IsTheDerivativeOfTheForward) {
  for (const OutputNorm norm : kNorms) {
    SCOPED_TRACE(static_cast<int>(norm));
    Call(OutputGate::kNone, norm, false, false, false, false).check();
    Call(OutputGate::kNone, norm, false, true, false, true).check();
    for (const OutputGate gate : kGates) {
      SCOPED_TRACE(static_cast<int>(gate));
      Call(gate, norm, true, false, false, false).check();
      for (const bool behind : {false, true}) {
        SCOPED_TRACE(behind);
        for (const bool repeats : {false, true}) {
          Call(gate, norm, true, true, behind, repeats).check();
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
