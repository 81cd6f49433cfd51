// The fp64 definition of gemm_swiglu: against numbers made by hand, and its gradients against
// central differences of itself.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "cli/cases/random.h"
#include "reference/gemm_swiglu.h"

namespace tandem {
namespace {

using reference::differentiate_row;
using reference::gate_row;
using reference::gate_value;
using reference::GatedColumns;
using reference::GatedInput;
using reference::GatedRow;
using reference::GateValue;
using reference::read_input;

constexpr GateActivation kActivations[] = {GateActivation::kSilu, GateActivation::kGelu,
                                           GateActivation::kGeluTanh, GateActivation::kRelu};

TEST(GemmSwigluDefinition, HasTheValuesOfItsActivations) {
  const auto expect = [](GateActivation activation, double z, double value, double slope) {
    const GateValue got = gate_value(activation, z);
    EXPECT_NEAR(got.value, value, 1e-12) << static_cast<int>(activation) << " " << z;
    EXPECT_NEAR(got.slope, slope, 1e-12) << static_cast<int>(activation) << " " << z;
  };
  // sigmoid(log 3) = 3/4.
  const double l = std::log(3.0);
  expect(GateActivation::kSilu, 0, 0, 0.5);
  expect(GateActivation::kSilu, l, 0.75 * l, 0.75 + l * 3 / 16);
  expect(GateActivation::kSilu, -l, -0.25 * l, 0.25 - l * 3 / 16);
  // The normal distribution's at 1: 0.8413..., and its density.
  const double below = 0.841344746068542949, density = 0.241970724519143349;
  expect(GateActivation::kGelu, 0, 0, 0.5);
  expect(GateActivation::kGelu, 1, below, below + density);
  expect(GateActivation::kGelu, -1, below - 1, 1 - below - density);
  // By torch's own function in fp64.
  expect(GateActivation::kGeluTanh, 0, 0, 0.5);
  expect(GateActivation::kGeluTanh, 1, 0.841191990608307, 1.082964083845783);
  expect(GateActivation::kGeluTanh, -1, -0.158808009391693, -0.082964083845783);
  expect(GateActivation::kRelu, 2, 2, 1);
  expect(GateActivation::kRelu, -2, 0, 0);
  expect(GateActivation::kRelu, 0, 0, 0);
}

/// One row of 3 columns with a norm in front, everything in fp64.
struct Row {
  static constexpr int kWidth = 5, kColumns = 3;

  Row() {
    const tools::RandomStream random(7, "gemm_swiglu");
    std::uint64_t next = 0;
    for (auto* values : {&x, &gate_weight, &up_weight, &norm_weight, &d_out}) {
      const bool is_matrix = values == &gate_weight || values == &up_weight;
      values->resize(is_matrix ? kColumns * kWidth : values == &d_out ? kColumns : kWidth);
      for (double& value : *values) value = random.normal(next++);
    }
  }

  GemmSwigluForwardArgs args(GateActivation activation, bool normalizes) {
    const auto tensor = [](std::vector<double>& values, const Dims& shape) {
      return TensorView::contiguous(values.data(), DType::kFloat64, shape);
    };
    GemmSwigluForwardArgs args{.x = tensor(x, {1, kWidth}),
                               .gate_weight = tensor(gate_weight, {kColumns, kWidth}),
                               .up_weight = tensor(up_weight, {kColumns, kWidth}),
                               .activation = activation,
                               .out = {}};
    if (normalizes) args.norm_weight = tensor(norm_weight, {kWidth});
    if (normalizes) args.eps = 0.1;
    return args;
  }

  std::vector<double> x, gate_weight, up_weight, norm_weight, d_out;
};

TEST(GemmSwigluDefinition, IsTheGatedProduct) {
  std::vector<double> x = {3, -4}, gate = {1, 1, 2, 1}, up = {1, 2, 1, -1}, norm = {5, 10};
  const auto tensor = [](std::vector<double>& values, const Dims& shape) {
    return TensorView::contiguous(values.data(), DType::kFloat64, shape);
  };
  GemmSwigluForwardArgs args{.x = tensor(x, {1, 2}),
                             .gate_weight = tensor(gate, {2, 2}),
                             .up_weight = tensor(up, {2, 2}),
                             .activation = GateActivation::kRelu,
                             .out = {}};
  const auto out = [&] { return gate_row(GatedColumns(args, 0, 2), read_input(args, 0).n); };
  // g = -1, 2; u = -5, 7.
  EXPECT_EQ(out().out, (std::vector<double>{0, 14}));
  EXPECT_EQ(out().gate_slope, (std::vector<double>{0, 7}));
  EXPECT_EQ(out().up_slope, (std::vector<double>{0, 2}));
  // The mean of 9 and 16 and eps = 3.5 are 16: n = 3.75, -10; g = -6.25, -2.5.
  args.norm_weight = tensor(norm, {2});
  args.eps = 3.5;
  EXPECT_EQ(read_input(args, 0).n, (std::vector<double>{3.75, -10}));
  EXPECT_EQ(read_input(args, 0).rstd, 0.25);
  std::vector<double> rstd = {1};
  args.eps.reset();
  args.rstd = tensor(rstd, {1});
  EXPECT_EQ(read_input(args, 0).n, (std::vector<double>{15, -40}));
}

TEST(GemmSwigluDefinition, IsTheDerivativeOfTheForward) {
  for (const GateActivation activation : kActivations) {
    for (const bool normalizes : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(activation) << normalizes);
      Row row;
      const auto run = [&] {
        const GemmSwigluForwardArgs args = row.args(activation, normalizes);
        return gate_row(GatedColumns(args, 0, Row::kColumns), read_input(args, 0).n);
      };
      const auto loss = [&] {
        const GatedRow made = run();
        double sum = 0;
        for (int j = 0; j < Row::kColumns; ++j) sum += made.out[j] * row.d_out[j];
        return sum;
      };
      const auto difference = [&](double& value) {
        constexpr double kStep = 1e-5;
        const double kept = value;
        value = kept + kStep;
        const double above = loss();
        value = kept - kStep;
        const double below = loss();
        value = kept;
        return (above - below) / (2 * kStep);
      };
      const GemmSwigluForwardArgs args = row.args(activation, normalizes);
      const GatedInput input = read_input(args, 0);
      const GatedRow made = run();
      std::vector<double> dx =
          differentiate_row(GatedColumns(args, 0, Row::kColumns), made, row.d_out, Row::kWidth);
      if (normalizes) {
        dx = reference::rms_norm_row_gradient(input.x, input.rstd, row.norm_weight, dx).dx;
      }
      for (int i = 0; i < Row::kWidth; ++i) {
        EXPECT_NEAR(dx[i], difference(row.x[i]), 1e-8) << i;
        for (int j = 0; j < Row::kColumns; ++j) {
          const int at = j * Row::kWidth + i;
          EXPECT_NEAR(row.d_out[j] * made.gate_slope[j] * input.n[i],
                      difference(row.gate_weight[at]), 1e-8);
          EXPECT_NEAR(row.d_out[j] * made.up_slope[j] * input.n[i], difference(row.up_weight[at]),
                      1e-8);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
