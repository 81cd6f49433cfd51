// The fp64 definition of projection: against numbers made by hand, and its gradients against
// central differences of itself.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "cli/cases/random.h"
#include "reference/projection.h"

namespace tandem {
namespace {

using reference::differentiate_row;
using reference::project_row;
using reference::ProjectedColumns;
using reference::ProjectedRow;

TensorView matrix(std::vector<double>& values, std::int64_t rows, std::int64_t columns) {
  return TensorView::contiguous(values.data(), DType::kFloat64, {rows, columns});
}

/// The row of one segment with these pre-activations: x is 1, the weights are they.
ProjectedRow row_of(ProjectionSegment segment, std::vector<double> z) {
  segment.weight = matrix(z, std::ssize(z), 1);
  return project_row({segment, 0, std::ssize(z)}, {1});
}

void expect_near(const std::vector<double>& got, const std::vector<double>& right) {
  ASSERT_EQ(got.size(), right.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], right[i], 1e-12) << i;
}

TEST(ProjectionDefinition, IsTheProductWithTheBias) {
  std::vector<double> weight = {1, 2, -3, 0.5}, bias = {10, 20};
  ProjectionSegment segment{.weight = matrix(weight, 2, 2)};
  segment.bias = TensorView::contiguous(bias.data(), DType::kFloat64, {2});
  expect_near(project_row({segment, 0, 2}, {3, 4}).out, {21, 13});
  expect_near(project_row({segment, 1, 1}, {3, 4}).out, {13});
}

TEST(ProjectionDefinition, HasTheValuesOfItsActivations) {
  // sigmoid(log 3) = 3/4, sigmoid(-log 3) = 1/4.
  const double l = std::log(3.0);
  expect_near(row_of({.activation = Activation::kSigmoid}, {0, l, -l}).out, {0.5, 0.75, 0.25});
  expect_near(row_of({.activation = Activation::kSilu}, {0, l, -l}).out, {0, 0.75 * l, -0.25 * l});
  expect_near(row_of({.activation = Activation::kLogSigmoid}, {0, l}).out,
              {-std::log(2.0) / 16, std::log(0.75) / 16});
  expect_near(row_of({.activation = Activation::kLogSigmoid, .divisor = 2}, {l}).out,
              {std::log(0.75) / 2});
  // softplus(log 3) = log 4.
  expect_near(row_of({.activation = Activation::kSoftplus}, {0, l}).out,
              {std::log(2.0), std::log(4.0)});
  const ProjectedRow clamped =
      row_of({.activation = Activation::kSoftplus, .min = 0.7, .max = 1}, {0, 0.5, l});
  expect_near(clamped.out, {0.7, std::log1p(std::exp(0.5)), 1});
  expect_near(clamped.slope, {0, 1 / (1 + std::exp(-0.5)), 0});
  const ProjectedRow unit =
      row_of({.activation = Activation::kL2Normalize, .head_width = 2}, {3, 4, 0, 0});
  expect_near(unit.inverse_norm, {1 / std::sqrt(25 + 1e-6), 1000});
  expect_near(unit.out, {3 / std::sqrt(25 + 1e-6), 4 / std::sqrt(25 + 1e-6), 0, 0});
}

TEST(ProjectionDefinition, IsTheDerivativeOfTheForward) {
  const tools::RandomStream random(3, "projection");
  const ProjectionSegment segments[] = {
      {.activation = Activation::kNone},
      {.activation = Activation::kSilu},
      {.activation = Activation::kSigmoid},
      {.activation = Activation::kLogSigmoid},
      {.activation = Activation::kLogSigmoid, .divisor = 3},
      {.activation = Activation::kSoftplus},
      {.activation = Activation::kSoftplus, .min = 0.3, .max = 1.5},
      {.activation = Activation::kL2Normalize, .head_width = 4}};
  for (const ProjectionSegment& segment : segments) {
    SCOPED_TRACE(static_cast<int>(segment.activation));
    std::vector<double> z(8), d_out(8);
    for (int i = 0; i < 8; ++i) {
      z[i] = 2 * random.normal(i);
      d_out[i] = random.normal(100 + i);
    }
    const auto loss = [&] {
      double sum = 0;
      const ProjectedRow row = row_of(segment, z);
      for (int i = 0; i < 8; ++i) sum += row.out[i] * d_out[i];
      return sum;
    };
    ProjectionSegment with_weight = segment;
    with_weight.weight = matrix(z, 8, 1);
    const std::vector<double> dz =
        differentiate_row({with_weight, 0, 8}, row_of(segment, z), d_out);
    for (int i = 0; i < 8; ++i) {
      constexpr double kStep = 1e-5;
      const double kept = z[i];
      z[i] = kept + kStep;
      const double above = loss();
      z[i] = kept - kStep;
      const double below = loss();
      z[i] = kept;
      EXPECT_NEAR(dz[i], (above - below) / (2 * kStep), 1e-9) << i;
    }
  }
}

}  // namespace
}  // namespace tandem
