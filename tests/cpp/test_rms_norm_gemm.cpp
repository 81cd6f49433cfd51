// rms_norm_gemm where its cases do not reach (test_every_case.cpp): the norm alone, bits that do
// not depend on other rows, segments or threads, NaN, parts of the gradients, and what it refuses
// beyond its tables.
#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cli/cases/random.h"
#include "core/float16.h"
#include "refusals.h"
#include "tandem/error.h"
#include "tandem/ops/rms_norm_gemm.h"

namespace tandem::tools {
namespace {

/// Random inputs of three segments, and room for every result.
struct Call {
  static constexpr std::int64_t kInput = 72;
  static constexpr std::int64_t kColumns[] = {64, 40, 24};
  static constexpr std::size_t kSegments = std::size(kColumns);

  explicit Call(std::int64_t M) : M(M) {
    const auto random = [](std::int64_t count, const std::string& name) {
      const RandomStream numbers(4, name);
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i) values[i] = numbers.normal(i);
      return values;
    };
    x = random(M * kInput, "x");
    norm_weight = random(kInput, "norm_weight");
    dx.assign(x.size(), -7);
    d_norm_weight.assign(kInput, -7);
    rstd.assign(M, -7);
    for (std::size_t i = 0; i < kSegments; ++i) {
      const std::int64_t columns = kColumns[i];
      const std::string number = std::to_string(i);
      weight[i] = random(columns * kInput, "weight" + number);
      bias[i] = random(columns, "bias" + number);
      d_out[i] = random(M * columns, "d_out" + number);
      out[i].assign(M * columns, -7);
      d_weight[i].assign(columns * kInput, -7);
      d_bias[i].assign(columns, -7);
    }
  }

  static TensorView tensor(std::vector<float>& values, const Dims& shape) {
    return TensorView::contiguous(values.data(), DType::kFloat32, shape);
  }
  TensorView rows(std::vector<float>& values, std::int64_t columns) {
    return tensor(values, {M, columns});
  }

  RmsNormGemmForwardArgs forward() {
    RmsNormGemmForwardArgs args{.x = rows(x, kInput),
                                .norm_weight = tensor(norm_weight, {kInput}),
                                .segments = {},
                                .kept_rstd = tensor(rstd, {M})};
    for (std::size_t i = 0; i < kSegments; ++i) {
      args.segments.push_back({.weight = tensor(weight[i], {kColumns[i], kInput}),
                               .bias = tensor(bias[i], {kColumns[i]}),
                               .out = rows(out[i], kColumns[i])});
    }
    return args;
  }
  RmsNormGemmBackwardArgs backward() {
    RmsNormGemmBackwardArgs args{.x = rows(x, kInput),
                                 .norm_weight = tensor(norm_weight, {kInput}),
                                 .rstd = tensor(rstd, {M}),
                                 .segments = {},
                                 .dx = rows(dx, kInput),
                                 .d_norm_weight = tensor(d_norm_weight, {kInput})};
    for (std::size_t i = 0; i < kSegments; ++i) {
      args.segments.push_back({.weight = tensor(weight[i], {kColumns[i], kInput}),
                               .bias = tensor(bias[i], {kColumns[i]}),
                               .d_out = rows(d_out[i], kColumns[i]),
                               .d_weight = tensor(d_weight[i], {kColumns[i], kInput}),
                               .d_bias = tensor(d_bias[i], {kColumns[i]})});
    }
    return args;
  }
  void run() {
    rms_norm_gemm_forward(forward());
    rms_norm_gemm_backward(backward());
  }

  std::int64_t M;
  std::vector<float> x, norm_weight, rstd, dx, d_norm_weight;
  std::vector<float> weight[kSegments], bias[kSegments], d_out[kSegments], out[kSegments];
  std::vector<float> d_weight[kSegments], d_bias[kSegments];
};

/// Compares bits, those of NaN too.
void expect_same(const std::vector<float>& got, const std::vector<float>& right, std::int64_t begin,
                 std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(right[i])) << i;
  }
}

/// Compares rows [0, rows) of what has rows.
void expect_same_rows(const Call& got, const Call& right, std::int64_t rows) {
  expect_same(got.rstd, right.rstd, 0, rows);
  expect_same(got.dx, right.dx, 0, rows * Call::kInput);
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    SCOPED_TRACE(i);
    expect_same(got.out[i], right.out[i], 0, rows * Call::kColumns[i]);
  }
}

/// With a unit matrix for a weight the output is the norm, which is rounded once.
TEST(RmsNormGemm, TheNormIsItsDefinitionRounded) {
  constexpr std::int64_t kRows = 33, kWidth = 40;
  const RandomStream random(7, "norm");
  std::vector<BFloat16> x(kRows * kWidth), weight(kWidth * kWidth, from_float<BFloat16>(0.0f));
  std::vector<float> norm_weight(kWidth), out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = from_float<BFloat16>(random.normal(i));
  for (std::size_t i = 0; i < norm_weight.size(); ++i) norm_weight[i] = random.normal(10000 + i);
  for (std::int64_t i = 0; i < kWidth; ++i) weight[i * kWidth + i] = from_float<BFloat16>(1.0f);
  RmsNormGemmForwardArgs args{
      .x = TensorView::contiguous(x.data(), DType::kBFloat16, {kRows, kWidth}),
      .norm_weight = TensorView::contiguous(norm_weight.data(), DType::kFloat32, {kWidth}),
      .eps = 0.5,
      .segments = {
          {.weight = TensorView::contiguous(weight.data(), DType::kBFloat16, {kWidth, kWidth}),
           .out = TensorView::contiguous(out.data(), DType::kFloat32, {kRows, kWidth})}}};
  rms_norm_gemm_forward(args);
  for (std::int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const double value = to_float(x[row * kWidth + i]);
      sum += value * value;
    }
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const double n =
          to_float(x[row * kWidth + i]) / std::sqrt(sum / kWidth + 0.5) * norm_weight[i];
      const float got = out[row * kWidth + i];
      EXPECT_EQ(got, to_float(from_float<BFloat16>(got))) << "not rounded";
      EXPECT_LE(std::fabs(got - n), 0x1.01p-8 * std::fabs(n));
    }
  }
}

TEST(RmsNormGemm, AGivenRstdIsTakenAsItIs) {
  Call computed(130), given(130);
  computed.run();
  std::vector<float> rstd = computed.rstd;
  RmsNormGemmForwardArgs args = given.forward();
  args.rstd = Call::tensor(rstd, {130});
  rms_norm_gemm_forward(args);
  rms_norm_gemm_backward(given.backward());
  expect_same_rows(given, computed, 130);
  for (float& value : rstd) value *= 2;
  rms_norm_gemm_forward(args);
  EXPECT_EQ(given.rstd, rstd);
  const auto& bias = given.bias[0];
  for (std::size_t i = 0; i < given.out[0].size(); ++i) {
    const float b = bias[i % bias.size()];
    EXPECT_NEAR(given.out[0][i] - b, 2 * (computed.out[0][i] - b), 1e-4);
  }
}

TEST(RmsNormGemm, ARowsBitsDoNotDependOnHowManyThereAre) {
  Call most(1100);
  most.run();
  for (const std::int64_t M : {1, 2, 3, 63, 64, 65, 130, 512, 513}) {
    SCOPED_TRACE(M);
    Call call(M);
    call.run();
    expect_same_rows(call, most, M);
  }
}

TEST(RmsNormGemm, ASegmentsBitsDoNotDependOnTheOthers) {
  Call all(130);
  all.run();
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    Call call(130);
    RmsNormGemmForwardArgs forward = call.forward();
    forward.segments = {forward.segments[i]};
    rms_norm_gemm_forward(forward);
    RmsNormGemmBackwardArgs backward = call.backward();
    backward.segments = {backward.segments[i]};
    backward.dx.reset();
    backward.d_norm_weight.reset();
    rms_norm_gemm_backward(backward);
    EXPECT_EQ(call.out[i], all.out[i]);
    EXPECT_EQ(call.d_weight[i], all.d_weight[i]);
    EXPECT_EQ(call.d_bias[i], all.d_bias[i]);
  }
}

TEST(RmsNormGemm, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  Call one(1100);
  omp_set_num_threads(1);
  one.run();
  for (const int count : {2, 3, 7}) {
    Call other(1100);
    omp_set_num_threads(count);
    other.run();
    expect_same_rows(other, one, 1100);
    EXPECT_EQ(other.d_norm_weight, one.d_norm_weight) << count;
    for (std::size_t i = 0; i < Call::kSegments; ++i) {
      EXPECT_EQ(other.d_weight[i], one.d_weight[i]) << count;
      EXPECT_EQ(other.d_bias[i], one.d_bias[i]) << count;
    }
  }
  omp_set_num_threads(threads);
}

/// NaN in x, and in the gradient by an output, reaches the outputs and dx of its row alone, and
/// there it is seen.
TEST(RmsNormGemm, NanStaysInItsRow) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Call clean(130);
  clean.run();
  for (const std::int64_t row : {0, 63, 64, 129}) {
    SCOPED_TRACE(row);
    const auto expect = [&](const std::vector<float>& got, const std::vector<float>& right,
                            std::int64_t width) {
      expect_same(got, right, 0, row * width);
      expect_same(got, right, (row + 1) * width, 130 * width);
      for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
        ASSERT_TRUE(std::isnan(got[i])) << i;
      }
    };
    Call dirty(130);
    dirty.x[row * Call::kInput + 5] = kNaN;
    dirty.run();
    expect(dirty.rstd, clean.rstd, 1);
    expect(dirty.dx, clean.dx, Call::kInput);
    for (std::size_t i = 0; i < Call::kSegments; ++i) {
      expect(dirty.out[i], clean.out[i], Call::kColumns[i]);
    }
    Call behind(130);
    behind.d_out[2][row * Call::kColumns[2] + 1] = kNaN;
    behind.run();
    expect(behind.dx, clean.dx, Call::kInput);
  }
}

/// Each gradient alone has the bits that it has beside the others.
TEST(RmsNormGemm, OnlyWhatIsAskedForIsWritten) {
  Call all(130);
  all.run();
  for (int wanted = 0; wanted < 4; ++wanted) {
    Call one(130);
    rms_norm_gemm_forward(one.forward());
    RmsNormGemmBackwardArgs args = one.backward();
    if (wanted != 0) args.dx.reset();
    if (wanted != 1) args.d_norm_weight.reset();
    for (RmsNormGemmSegmentGradient& segment : args.segments) {
      if (wanted != 2) segment.d_weight.reset();
      if (wanted != 3) segment.d_bias.reset();
    }
    rms_norm_gemm_backward(args);
    const auto expect = [&](const std::vector<float>& got, const std::vector<float>& right, int i) {
      EXPECT_EQ(got, i == wanted ? right : std::vector<float>(got.size(), -7)) << i;
    };
    expect(one.dx, all.dx, 0);
    expect(one.d_norm_weight, all.d_norm_weight, 1);
    expect(one.d_weight[1], all.d_weight[1], 2);
    expect(one.d_bias[0], all.d_bias[0], 3);
  }
}

/// A gradient that is not there is one of zeros.
TEST(RmsNormGemm, AnAbsentGradientIsZero) {
  Call zeros(130), absent(130);
  std::fill(zeros.d_out[1].begin(), zeros.d_out[1].end(), 0.0f);
  zeros.run();
  rms_norm_gemm_forward(absent.forward());
  RmsNormGemmBackwardArgs args = absent.backward();
  args.segments[1].d_out.reset();
  rms_norm_gemm_backward(args);
  EXPECT_EQ(absent.dx, zeros.dx);
  EXPECT_EQ(absent.d_norm_weight, zeros.d_norm_weight);
  EXPECT_EQ(absent.d_weight[1], std::vector<float>(absent.d_weight[1].size(), 0));
  EXPECT_EQ(absent.d_bias[1], zeros.d_bias[1]);
}

/// The sum is rounded once: fp32's, of the same fp32.
TEST(RmsNormGemm, AccumulateAddsToWhatIsThere) {
  Call fresh(130), added(130);
  fresh.run();
  rms_norm_gemm_forward(added.forward());
  RmsNormGemmBackwardArgs args = added.backward();
  args.accumulate = true;
  rms_norm_gemm_backward(args);
  EXPECT_EQ(added.dx, fresh.dx);
  const auto expect = [](const std::vector<float>& got, const std::vector<float>& right) {
    for (std::size_t i = 0; i < right.size(); ++i) ASSERT_EQ(got[i], right[i] + -7.0f);
  };
  expect(added.d_norm_weight, fresh.d_norm_weight);
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    expect(added.d_weight[i], fresh.d_weight[i]);
    expect(added.d_bias[i], fresh.d_bias[i]);
  }
}

TEST(RmsNormGemm, AnAddendIsAddedToDxAlone) {
  Call plain(130), added(130);
  plain.run();
  rms_norm_gemm_forward(added.forward());
  RmsNormGemmBackwardArgs args = added.backward();
  args.addend = plain.rows(plain.x, Call::kInput);
  rms_norm_gemm_backward(args);
  for (std::size_t i = 0; i < plain.dx.size(); ++i) {
    ASSERT_NEAR(added.dx[i], plain.dx[i] + plain.x[i], 1e-4);
  }
  EXPECT_EQ(added.d_norm_weight, plain.d_norm_weight);
  EXPECT_EQ(added.d_weight[0], plain.d_weight[0]);
}

TEST(RmsNormGemmRefusals, ForwardArguments) {
  const auto refused = [](const std::function<void(RmsNormGemmForwardArgs&)>& change,
                          const std::string& text) {
    Call call(5);
    RmsNormGemmForwardArgs args = call.forward();
    change(args);
    expect_refused([&] { rms_norm_gemm_forward(args); }, "[rms_norm_gemm_forward] " + text);
    EXPECT_EQ(call.out[0], std::vector<float>(call.out[0].size(), -7));
    EXPECT_EQ(call.rstd, std::vector<float>(5, -7));
  };
  using Args = RmsNormGemmForwardArgs;
  refused([](Args& a) { a.segments.clear(); }, "segments must be 1 to 8, got 0");
  refused([](Args& a) { a.segments.resize(9, a.segments[0]); }, "segments must be 1 to 8, got 9");
  refused([](Args& a) { a.segments[1].weight.shape[0] = std::int64_t{1} << 31; },
          "segments must have less than 2^31 columns together, got 2147483648");
  refused([](Args& a) { a.eps = -1; }, "eps must not be negative, got -1.000000");
  refused([](Args& a) { a.eps = std::nan(""); }, "eps must be finite, got nan");
  refused(
      [](Args& a) {
        a.rstd = a.kept_rstd;
        a.kept_rstd.reset();
        a.eps = 1e-5;
      },
      "eps must not be given beside rstd, which includes it");
}

TEST(RmsNormGemmRefusals, BackwardArguments) {
  const auto refused = [](const std::function<void(RmsNormGemmBackwardArgs&)>& change,
                          const std::string& text) {
    Call call(5);
    RmsNormGemmBackwardArgs args = call.backward();
    change(args);
    expect_refused([&] { rms_norm_gemm_backward(args); }, "[rms_norm_gemm_backward] " + text);
    EXPECT_EQ(call.dx, std::vector<float>(call.dx.size(), -7));
  };
  using Args = RmsNormGemmBackwardArgs;
  refused([](Args& a) { a.segments.clear(); }, "segments must be 1 to 8, got 0");
  refused([](Args& a) { a.segments[2].bias.reset(); }, "d_bias2 needs bias2");
}

}  // namespace
}  // namespace tandem::tools
