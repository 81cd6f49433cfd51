// The fp64 definition of rms_norm_gemm: against numbers made by hand, and its gradients against
// central differences of itself. Those of the norm and of the products alone:
// test_rms_norm.cpp, test_projection_definition.cpp.
#include <gtest/gtest.h>

#include <vector>

#include "cli/cases/random.h"
#include "reference/rms_norm_gemm.h"

namespace tandem {
namespace {

using reference::NormedRows;
using reference::product_of;
using reference::project_row;

TensorView tensor(std::vector<double>& values, const Dims& shape) {
  return TensorView::contiguous(values.data(), DType::kFloat64, shape);
}

TEST(RmsNormGemmDefinition, IsTheProductOfTheNorm) {
  // Means of squares: 25 and, with eps, 100; weights 2 and 3.
  std::vector<double> x = {1, 7, 6, -8}, norm_weight = {2, 3}, weight = {1, 0, 1, 1},
                      bias = {0, 10};
  RmsNormGemmForwardArgs args{
      .x = tensor(x, {2, 2}),
      .norm_weight = tensor(norm_weight, {2}),
      .segments = {{.weight = tensor(weight, {2, 2}), .bias = tensor(bias, {2}), .out = {}}}};
  const auto out = [&](std::int64_t row) {
    return project_row({product_of(args.segments[0]), 0, 2}, NormedRows(args).row(row)).out;
  };
  args.eps = 0;
  EXPECT_NEAR(out(0)[0], 0.4, 1e-15);
  EXPECT_NEAR(out(0)[1], 0.4 + 4.2 + 10, 1e-14);
  args.eps = 50;
  EXPECT_NEAR(out(1)[0], 1.2, 1e-15);
  EXPECT_NEAR(out(1)[1], 1.2 - 2.4 + 10, 1e-14);
  args.eps.reset();
  std::vector<double> rstd = {1, 0.5};
  args.rstd = tensor(rstd, {2});
  EXPECT_NEAR(out(0)[0], 2, 1e-15);
  EXPECT_NEAR(out(1)[0], 6, 1e-15);
}

TEST(RmsNormGemmDefinition, TakesAnEpsOfOneMillionth) {
  std::vector<double> x = {0, 0, 0}, norm_weight = {1, 1, 1};
  const NormedRows rows(
      {.x = tensor(x, {1, 3}), .norm_weight = tensor(norm_weight, {3}), .segments = {}});
  EXPECT_NEAR(rows.rstd[0], 1000, 1e-9);
  EXPECT_EQ(rows.row(0), (std::vector<double>{0, 0, 0}));
}

TEST(RmsNormGemmDefinition, IsTheDerivativeOfTheForward) {
  constexpr std::int64_t kWidth = 5, kColumns = 3;
  const tools::RandomStream random(3, "rms_norm_gemm");
  std::vector<double> x(kWidth), norm_weight(kWidth), weight(kColumns * kWidth), d_out(kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = random.normal(i);
  for (std::size_t i = 0; i < x.size(); ++i) norm_weight[i] = 1 + random.normal(100 + i) / 4;
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = random.normal(200 + i);
  for (std::size_t i = 0; i < d_out.size(); ++i) d_out[i] = random.normal(300 + i);
  RmsNormGemmForwardArgs args{
      .x = tensor(x, {1, kWidth}),
      .norm_weight = tensor(norm_weight, {kWidth}),
      .eps = 0.1,
      .segments = {{.weight = tensor(weight, {kColumns, kWidth}), .out = {}}}};
  const auto loss = [&] {
    const auto row =
        project_row({product_of(args.segments[0]), 0, kColumns}, NormedRows(args).row(0));
    double sum = 0;
    for (std::int64_t j = 0; j < kColumns; ++j) sum += row.out[j] * d_out[j];
    return sum;
  };
  const auto expect_slope = [&](double& value, double gradient) {
    constexpr double kStep = 1e-5;
    const double kept = value;
    value = kept + kStep;
    const double above = loss();
    value = kept - kStep;
    const double below = loss();
    value = kept;
    EXPECT_NEAR(gradient, (above - below) / (2 * kStep), 1e-8);
  };
  const NormedRows rows(args);
  std::vector<double> dn(kWidth);
  for (std::int64_t j = 0; j < kColumns; ++j) {
    for (std::int64_t i = 0; i < kWidth; ++i) dn[i] += d_out[j] * weight[j * kWidth + i];
  }
  const auto gradient = rows.gradient(0, dn);
  for (std::int64_t i = 0; i < kWidth; ++i) {
    expect_slope(x[i], gradient.dx[i]);
    expect_slope(norm_weight[i], gradient.d_weight[i]);
    for (std::int64_t j = 0; j < kColumns; ++j) {
      expect_slope(weight[j * kWidth + i], d_out[j] * rows.row(0)[i]);
    }
  }
}

}  // namespace
}  // namespace tandem
