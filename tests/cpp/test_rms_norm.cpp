// The RMS norm's fp64 definition, against numbers made by hand and central differences of itself;
// and the CPU's against the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "cli/tensors/tensors.h"
#include "cpu/rms_norm.h"
#include "reference/element.h"
#include "reference/rms_norm.h"

namespace tandem {
namespace {

using reference::rms_norm_row;
using reference::rms_norm_row_gradient;
using reference::rms_norm_rstd;
using reference::RmsNormRowGradient;

std::vector<double> normal_values(std::int64_t count, std::uint64_t seed) {
  const tools::RandomStream random(seed, "rms_norm");
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(random.normal(i));
  return values;
}

TEST(RmsNormDefinition, HasTheValuesOfTheFormula) {
  // The mean of 1, 49 is 25.
  EXPECT_NEAR(rms_norm_rstd({1, -7}, 0), 0.2, 1e-15);
  EXPECT_NEAR(rms_norm_rstd({1, -7}, 75), 0.1, 1e-15);
  EXPECT_NEAR(rms_norm_rstd({0, 0, 0}, 1e-6), 1000, 1e-9);
  const std::vector<double> n = rms_norm_row({1, -7}, 0.2, {10, 0.5});
  EXPECT_NEAR(n[0], 2, 1e-15);
  EXPECT_NEAR(n[1], -0.7, 1e-15);
}

TEST(RmsNormDefinition, IsTheDerivativeOfTheForward) {
  constexpr int kWidth = 7;
  constexpr double kEps = 0.3, kStep = 1e-5;
  std::vector<double> x = normal_values(kWidth, 1), weight = normal_values(kWidth, 2);
  const std::vector<double> dn = normal_values(kWidth, 3);
  const auto loss = [&] {
    const std::vector<double> n = rms_norm_row(x, rms_norm_rstd(x, kEps), weight);
    double sum = 0;
    for (int i = 0; i < kWidth; ++i) sum += n[i] * dn[i];
    return sum;
  };
  const auto difference = [&](double& value) {
    const double kept = value;
    value = kept + kStep;
    const double above = loss();
    value = kept - kStep;
    const double below = loss();
    value = kept;
    return (above - below) / (2 * kStep);
  };
  const RmsNormRowGradient gradient = rms_norm_row_gradient(x, rms_norm_rstd(x, kEps), weight, dn);
  for (int i = 0; i < kWidth; ++i) {
    EXPECT_NEAR(gradient.dx[i], difference(x[i]), 1e-9) << i;
    EXPECT_NEAR(gradient.d_weight[i], difference(weight[i]), 1e-9) << i;
  }
}

/// Rows of x and dn with gaps between them, rounded to a dtype, and what the CPU makes of them.
class Rows {
 public:
  Rows(DType dtype, DType weight_dtype, std::int64_t M, int d, double size = 1)
      : dtype(dtype), weight_dtype(weight_dtype), M(M), d(d), stride(d + 3) {
    x = buffer(dtype, normal_values(M * stride, 4), size);
    dn = buffer(dtype, normal_values(M * stride, 5), 1);
    weight = buffer(weight_dtype, normal_values(d, 6), 1);
    n = dx = std::vector<std::byte>(M * stride * size_of(dtype));
    d_weight = std::vector<std::byte>(d * size_of(real()));
    rstd = std::vector<std::byte>(M * size_of(real()));
  }

  DType real() const { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }

  static std::vector<std::byte> buffer(DType dtype, const std::vector<double>& values,
                                       double size) {
    std::vector<std::byte> bytes(values.size() * size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      tools::store(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i] * size);
    }
    return bytes;
  }

  std::vector<double> row(DType of, const std::vector<std::byte>& from, std::int64_t first,
                          std::int64_t count) const {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(reference::element(of, from.data(), first + i));
    }
    return values;
  }

  void run(double eps, bool accumulate = false) {
    RmsNorm norm{weight.data(), weight_dtype, eps};
    auto* const kept = reinterpret_cast<float*>(rstd.data());
    cpu::rms_norm_forward(dtype, M, d, {x.data(), stride}, norm, {n.data(), stride}, kept);
    norm.rstd = kept;
    cpu::rms_norm_backward(dtype, M, d, {x.data(), stride}, norm, {dn.data(), stride}, {},
                           {dx.data(), stride}, {real(), d_weight.data(), accumulate});
  }

  DType dtype, weight_dtype;
  std::int64_t M;
  int d;
  std::int64_t stride;
  std::vector<std::byte> x, dn, weight, n, dx, d_weight, rstd;
};

double length(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// Expects `right` but for a part of `size`.
void expect_close(std::vector<double> got, const std::vector<double>& right, double part,
                  double size) {
  for (std::size_t i = 0; i < right.size(); ++i) got[i] -= right[i];
  EXPECT_LE(length(got), part * size);
}

void expect_close(const std::vector<double>& got, const std::vector<double>& right, double part) {
  expect_close(got, right, part, length(right));
}

void expect_definition(const Rows& rows, double eps, double tolerance) {
  const std::vector<double> weight = rows.row(rows.weight_dtype, rows.weight, 0, rows.d);
  std::vector<double> d_weight(rows.d);
  for (std::int64_t i = 0; i < rows.M; ++i) {
    SCOPED_TRACE(i);
    const auto read = [&](const std::vector<std::byte>& from) {
      return rows.row(rows.dtype, from, i * rows.stride, rows.d);
    };
    const std::vector<double> x = read(rows.x);
    const double rstd = rms_norm_rstd(x, eps);
    expect_close(rows.row(rows.real(), rows.rstd, i, 1), {rstd}, 1e-6);
    expect_close(read(rows.n), rms_norm_row(x, rstd, weight), tolerance);
    const RmsNormRowGradient gradient = rms_norm_row_gradient(x, rstd, weight, read(rows.dn));
    // Both terms of dx are of the first one's size, and may cancel. What lies below fp16's normal
    // numbers is measured by these.
    const double size = length(rms_norm_row(read(rows.dn), rstd, weight));
    expect_close(read(rows.dx), gradient.dx, tolerance,
                 size + (rows.dtype == DType::kFloat16 ? 0x1p-13 : 0));
    for (int j = 0; j < rows.d; ++j) d_weight[j] += gradient.d_weight[j];
  }
  expect_close(rows.row(rows.real(), rows.d_weight, 0, rows.d), d_weight,
               std::min(tolerance, 1e-5));
}

TEST(RmsNormCpu, IsTheDefinition) {
  const struct {
    DType dtype, weight_dtype;
    double tolerance;
  } dtypes[] = {
      {DType::kBFloat16, DType::kBFloat16, 4e-3}, {DType::kBFloat16, DType::kFloat32, 4e-3},
      {DType::kFloat16, DType::kFloat16, 5e-4},   {DType::kFloat16, DType::kFloat32, 5e-4},
      {DType::kFloat32, DType::kFloat32, 1e-6},   {DType::kFloat64, DType::kFloat64, 1e-14}};
  for (const auto& [dtype, weight_dtype, tolerance] : dtypes) {
    SCOPED_TRACE(to_string(dtype));
    for (const double size : {1e-2, 1.0, 1e4}) {
      for (const std::int64_t M : {0, 1, 130}) {
        for (const int d : {1, 7, 72}) {
          Rows rows(dtype, weight_dtype, M, d, size);
          rows.run(1e-6);
          expect_definition(rows, 1e-6, tolerance);
        }
      }
    }
  }
}

TEST(RmsNormCpu, AddsToTheWeightsGradient) {
  Rows rows(DType::kBFloat16, DType::kFloat32, 70, 24);
  rows.run(1e-6);
  const std::vector<double> once = rows.row(DType::kFloat32, rows.d_weight, 0, rows.d);
  rows.run(1e-6, true);
  const std::vector<double> twice = rows.row(DType::kFloat32, rows.d_weight, 0, rows.d);
  for (int j = 0; j < rows.d; ++j) EXPECT_EQ(twice[j], 2 * once[j]) << j;
}

TEST(RmsNormCpu, ARowOfZerosIsZeroAndNanStaysInItsRow) {
  Rows rows(DType::kFloat16, DType::kFloat16, 3, 8);
  for (int j = 0; j < rows.d; ++j) tools::store(rows.dtype, rows.x.data(), j, 0);
  tools::store(rows.dtype, rows.x.data(), rows.stride + 2,
               std::numeric_limits<double>::quiet_NaN());
  rows.run(1e-6);
  for (const auto* made : {&rows.n, &rows.dx}) {
    for (int j = 0; j < rows.d; ++j) {
      EXPECT_TRUE(std::isfinite(reference::element(rows.dtype, made->data(), j)));
      EXPECT_TRUE(std::isnan(reference::element(rows.dtype, made->data(), rows.stride + j)));
      EXPECT_TRUE(std::isfinite(reference::element(rows.dtype, made->data(), 2 * rows.stride + j)));
    }
  }
  EXPECT_EQ(rows.row(rows.dtype, rows.n, 0, rows.d), std::vector<double>(rows.d));
  rows.run(0);
  EXPECT_TRUE(std::isnan(reference::element(rows.dtype, rows.n.data(), 0)));
}

}  // namespace
}  // namespace tandem
