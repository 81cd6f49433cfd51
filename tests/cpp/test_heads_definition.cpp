// The fp64 definition of heads' norm and rotation: against numbers made by hand, and its gradients
// against central differences of itself.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cli/cases/random.h"
#include "reference/rms_norm_gemm.h"

namespace tandem {
namespace {

using reference::HeadsOfRow;
using Vector = std::vector<double>;

TensorView tensor(Vector& values, const Dims& shape) {
  return TensorView::contiguous(values.data(), DType::kFloat64, shape);
}
TensorView tensor(std::vector<std::int32_t>& values) {
  return TensorView::contiguous(values.data(), DType::kInt32,
                                {static_cast<std::int64_t>(values.size())});
}

/// A call whose table turns row p by p quarters: cosines 1, 0, -1, 0.
struct Quarters {
  Vector cos = {1, 0, -1, 0}, sin = {0, 1, 0, -1}, weight = {2, 1, 1, 1, 1, 1, 1, 4};
  RmsNormGemmForwardArgs args;
  RmsNormGemmSegment segment{.weight = {}, .head_width = 8, .rotates = true, .out = {}};

  Quarters() {
    args.rope_cos = tensor(cos, {4, 1});
    args.rope_sin = tensor(sin, {4, 1});
  }
  Vector out(std::int64_t row, const Vector& z) const {
    return HeadsOfRow(args, segment, 0, row).out(z);
  }
};

TEST(HeadsDefinition, ARotationTurnsPairs) {
  Quarters call;
  const Vector z = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(call.out(0, z), z);
  EXPECT_EQ(call.out(1, z), (Vector{-2, 1, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(call.out(2, z), (Vector{-1, -2, 3, 4, 5, 6, 7, 8}));
  // Two pairs: (0,2) and (1,3), or (0,1) and (2,3).
  Vector cos = {0, 1}, sin = {1, 0};
  call.args.rope_cos = tensor(cos, {1, 2});
  call.args.rope_sin = tensor(sin, {1, 2});
  EXPECT_EQ(call.out(0, z), (Vector{-3, 2, 1, 4, 5, 6, 7, 8}));
  call.args.rope_layout = RopeLayout::kInterleaved;
  EXPECT_EQ(call.out(0, z), (Vector{-2, 1, 3, 4, 5, 6, 7, 8}));
}

TEST(HeadsDefinition, PositionsAreThoseOfTheirSequences) {
  Quarters call;
  const auto positions = [&] {
    std::vector<std::int64_t> found;
    for (std::int64_t row = 0; row < 6; ++row) {
      found.push_back(reference::rope_position(call.args, row));
    }
    return found;
  };
  using Positions = std::vector<std::int64_t>;
  EXPECT_EQ(positions(), (Positions{0, 1, 2, 3, 3, 3}));
  call.args.rope_length = 2;
  EXPECT_EQ(positions(), (Positions{0, 1, 0, 1, 0, 1}));
  std::vector<std::int32_t> offsets = {1, 3, 3, 5};
  call.args.cu_seqlens = tensor(offsets);
  EXPECT_EQ(positions(), (Positions{0, 0, 1, 0, 1, 0}));
  call.args.cu_seqlens.reset();
  std::vector<std::int32_t> given = {2, 2, -1, 9, 0, 1};
  call.args.rope_positions = tensor(given);
  EXPECT_EQ(positions(), (Positions{2, 2, 0, 3, 0, 1}));
}

TEST(HeadsDefinition, TheNormIsInFrontOfTheRotation) {
  Quarters call;
  call.segment.head_norm_weight = tensor(call.weight, {8});
  // A mean of squares of 4, and one of 8.
  const Vector z = {4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8};
  EXPECT_EQ(HeadsOfRow(call.args, call.segment, 0, 0).rstd(z), (Vector{0.5, 1 / std::sqrt(8.0)}));
  const Vector out = call.out(1, z);
  EXPECT_NEAR(out[0], -2, 1e-15);  // what was 4 / 2
  EXPECT_NEAR(out[1], 4, 1e-15);   // 4 / 2 by a weight of 2
  EXPECT_NEAR(out[15], 8 * 4 / std::sqrt(8.0), 1e-14);
  EXPECT_NEAR(HeadsOfRow(call.args, call.segment, 12, 0).rstd(z)[0], 0.25, 1e-15);
}

TEST(HeadsDefinition, IsTheDerivativeOfItself) {
  constexpr std::int64_t kColumns = 16;
  const tools::RandomStream random(3, "heads");
  Vector z(kColumns), d_out(kColumns), weight(8), cos(3), sin(3);
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = random.normal(i);
  for (std::size_t i = 0; i < z.size(); ++i) d_out[i] = random.normal(100 + i);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 1 + random.normal(200 + i) / 4;
  for (std::size_t i = 0; i < cos.size(); ++i) cos[i] = random.normal(300 + i);
  for (std::size_t i = 0; i < sin.size(); ++i) sin[i] = random.normal(400 + i);
  for (const bool normalizes : {false, true}) {
    for (const RopeLayout layout : {RopeLayout::kRotateHalf, RopeLayout::kInterleaved}) {
      RmsNormGemmForwardArgs args;
      args.rope_cos = tensor(cos, {1, 3});
      args.rope_sin = tensor(sin, {1, 3});
      args.rope_layout = layout;
      RmsNormGemmSegment segment{.weight = {}, .head_width = 8, .rotates = true, .out = {}};
      if (normalizes) segment.head_norm_weight = tensor(weight, {8});
      const auto loss = [&] {
        const Vector out = HeadsOfRow(args, segment, 0.1, 0).out(z);
        double sum = 0;
        for (std::size_t j = 0; j < out.size(); ++j) sum += out[j] * d_out[j];
        return sum;
      };
      const auto slope = [&](double& value) {
        constexpr double kStep = 1e-5;
        const double kept = value;
        value = kept + kStep;
        const double above = loss();
        value = kept - kStep;
        const double below = loss();
        value = kept;
        return (above - below) / (2 * kStep);
      };
      const HeadsOfRow heads(args, segment, 0.1, 0);
      const Vector dz = heads.dz(z, d_out), dy = heads.dy(d_out), rstd = heads.rstd(z);
      for (std::size_t j = 0; j < z.size(); ++j) EXPECT_NEAR(dz[j], slope(z[j]), 1e-8);
      for (std::size_t j = 0; normalizes && j < weight.size(); ++j) {
        const double expected = dy[j] * z[j] * rstd[0] + dy[8 + j] * z[8 + j] * rstd[1];
        EXPECT_NEAR(expected, slope(weight[j]), 1e-8);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
