// projection where its cases do not reach (test_every_case.cpp): bits that do not depend on other
// rows, segments or threads, NaN, parts of the gradients, and what it refuses beyond its tables.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cli/cases/random.h"
#include "core/float16.h"
#include "refusals.h"
#include "tandem/error.h"
#include "tandem/ops/projection.h"

namespace tandem::tools {
namespace {

/// Random inputs of three segments, and room for every result.
struct Call {
  static constexpr std::int64_t kInput = 72;
  static constexpr std::int64_t kColumns[] = {64, 40, 24};  // l2_normalize, silu, none
  static constexpr std::size_t kSegments = std::size(kColumns);

  explicit Call(std::int64_t M) : M(M) {
    const auto random = [](std::int64_t count, const std::string& name) {
      const RandomStream numbers(4, name);
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i) values[i] = numbers.normal(i);
      return values;
    };
    x = random(M * kInput, "x");
    dx.assign(x.size(), -7);
    for (std::size_t i = 0; i < kSegments; ++i) {
      const std::int64_t columns = kColumns[i];
      const std::string number = std::to_string(i);
      weight[i] = random(columns * kInput, "weight" + number);
      bias[i] = random(columns, "bias" + number);
      d_out[i] = random(M * columns, "d_out" + number);
      out[i].assign(M * columns, -7);
      kept[i].assign(M * columns, -7);
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

  ProjectionForwardArgs forward() {
    ProjectionForwardArgs args{.x = rows(x, kInput), .segments = {}};
    for (std::size_t i = 0; i < kSegments; ++i) {
      ProjectionSegment segment{.weight = tensor(weight[i], {kColumns[i], kInput}),
                                .bias = tensor(bias[i], {kColumns[i]}),
                                .out = rows(out[i], kColumns[i])};
      if (i == 0) {
        segment.activation = Activation::kL2Normalize;
        segment.head_width = 16;
        segment.inverse_norm = rows(kept[i], kColumns[i] / 16);
      }
      if (i == 1) {
        segment.activation = Activation::kSilu;
        segment.slope = rows(kept[i], kColumns[i]);
      }
      args.segments.push_back(segment);
    }
    return args;
  }
  ProjectionBackwardArgs backward() {
    ProjectionBackwardArgs args{
        .x = rows(x, kInput), .segments = {}, .dx = rows(dx, kInput), .accumulate = false};
    for (std::size_t i = 0; i < kSegments; ++i) {
      ProjectionSegmentGradient segment{.weight = tensor(weight[i], {kColumns[i], kInput}),
                                        .bias = tensor(bias[i], {kColumns[i]}),
                                        .out = rows(out[i], kColumns[i]),
                                        .d_out = rows(d_out[i], kColumns[i]),
                                        .d_weight = tensor(d_weight[i], {kColumns[i], kInput}),
                                        .d_bias = tensor(d_bias[i], {kColumns[i]})};
      if (i == 0) segment.inverse_norm = rows(kept[i], kColumns[i] / 16);
      if (i == 1) segment.slope = rows(kept[i], kColumns[i]);
      args.segments.push_back(segment);
    }
    return args;
  }
  void run() {
    projection_forward(forward());
    projection_backward(backward());
  }

  std::int64_t M;
  std::vector<float> x, dx;
  std::vector<float> weight[kSegments], bias[kSegments], d_out[kSegments], out[kSegments];
  std::vector<float> kept[kSegments], d_weight[kSegments], d_bias[kSegments];
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
  expect_same(got.dx, right.dx, 0, rows * Call::kInput);
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    SCOPED_TRACE(i);
    expect_same(got.out[i], right.out[i], 0, rows * Call::kColumns[i]);
    const std::int64_t width = i == 0 ? Call::kColumns[i] / 16 : Call::kColumns[i];
    expect_same(got.kept[i], right.kept[i], 0, rows * width);
  }
}

TEST(Projection, ARowsBitsDoNotDependOnHowManyThereAre) {
  Call most(1100);
  most.run();
  for (const std::int64_t M : {1, 2, 3, 63, 64, 65, 130, 512, 513}) {
    SCOPED_TRACE(M);
    Call call(M);
    call.run();
    expect_same_rows(call, most, M);
  }
}

TEST(Projection, ASegmentsBitsDoNotDependOnTheOthers) {
  Call all(130);
  all.run();
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    Call call(130);
    ProjectionForwardArgs forward = call.forward();
    forward.segments = {forward.segments[i]};
    projection_forward(forward);
    ProjectionBackwardArgs backward = call.backward();
    backward.segments = {backward.segments[i]};
    backward.dx.reset();
    projection_backward(backward);
    EXPECT_EQ(call.out[i], all.out[i]);
    EXPECT_EQ(call.d_weight[i], all.d_weight[i]);
    EXPECT_EQ(call.d_bias[i], all.d_bias[i]);
  }
}

TEST(Projection, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  Call one(1100);
  omp_set_num_threads(1);
  one.run();
  for (const int count : {2, 3, 7}) {
    Call other(1100);
    omp_set_num_threads(count);
    other.run();
    expect_same_rows(other, one, 1100);
    for (std::size_t i = 0; i < Call::kSegments; ++i) {
      EXPECT_EQ(other.d_weight[i], one.d_weight[i]) << count;
      EXPECT_EQ(other.d_bias[i], one.d_bias[i]) << count;
    }
  }
  omp_set_num_threads(threads);
}

/// NaN in x, and in the gradient by an output, reaches the outputs and dx of its row alone, and
/// there it is seen.
TEST(Projection, NanStaysInItsRow) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Call clean(130);
  clean.run();
  for (const std::int64_t row : {0, 63, 64, 129}) {
    SCOPED_TRACE(row);
    Call dirty(130);
    dirty.x[row * Call::kInput + 5] = kNaN;
    dirty.run();
    const auto expect = [&](const std::vector<float>& got, const std::vector<float>& right,
                            std::int64_t width) {
      expect_same(got, right, 0, row * width);
      expect_same(got, right, (row + 1) * width, 130 * width);
      for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
        ASSERT_TRUE(std::isnan(got[i])) << i;
      }
    };
    for (std::size_t i = 0; i < Call::kSegments; ++i) {
      expect(dirty.out[i], clean.out[i], Call::kColumns[i]);
    }
    expect(dirty.dx, clean.dx, Call::kInput);
    Call behind(130);
    behind.d_out[2][row * Call::kColumns[2] + 1] = kNaN;
    behind.run();
    expect(behind.dx, clean.dx, Call::kInput);
  }
}

/// Each gradient alone has the bits that it has beside the others.
TEST(Projection, OnlyWhatIsAskedForIsWritten) {
  Call all(130);
  all.run();
  for (int wanted = 0; wanted < 3; ++wanted) {
    Call one(130);
    projection_forward(one.forward());
    ProjectionBackwardArgs args = one.backward();
    if (wanted != 0) args.dx.reset();
    for (ProjectionSegmentGradient& segment : args.segments) {
      if (wanted != 1) segment.d_weight.reset();
      if (wanted != 2) segment.d_bias.reset();
    }
    projection_backward(args);
    const auto expect = [&](const std::vector<float>& got, const std::vector<float>& right, int i) {
      EXPECT_EQ(got, i == wanted ? right : std::vector<float>(got.size(), -7)) << i;
    };
    expect(one.dx, all.dx, 0);
    expect(one.d_weight[1], all.d_weight[1], 1);
    expect(one.d_bias[0], all.d_bias[0], 2);
  }
}

/// A gradient that is not there is one of zeros, and nothing of its segment is read.
TEST(Projection, AnAbsentGradientIsZero) {
  Call zeros(130), absent(130);
  projection_forward(zeros.forward());
  std::fill(zeros.d_out[1].begin(), zeros.d_out[1].end(), 0.0f);
  projection_backward(zeros.backward());
  ProjectionBackwardArgs args = absent.backward();
  projection_forward(absent.forward());
  std::fill(absent.kept[1].begin(), absent.kept[1].end(), std::numeric_limits<float>::quiet_NaN());
  args.segments[1].d_out.reset();
  projection_backward(args);
  EXPECT_EQ(absent.dx, zeros.dx);
  EXPECT_EQ(absent.d_weight[1], std::vector<float>(absent.d_weight[1].size(), 0));
  EXPECT_EQ(absent.d_weight[1], zeros.d_weight[1]);
  EXPECT_EQ(absent.d_bias[1], zeros.d_bias[1]);
}

/// The sum is rounded once: fp32's, of the same fp32.
TEST(Projection, AccumulateAddsToWhatIsThere) {
  Call fresh(130), added(130);
  fresh.run();
  projection_forward(added.forward());
  ProjectionBackwardArgs args = added.backward();
  args.accumulate = true;
  projection_backward(args);
  EXPECT_EQ(added.dx, fresh.dx);
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    for (std::size_t j = 0; j < fresh.d_weight[i].size(); ++j) {
      ASSERT_EQ(added.d_weight[i][j], fresh.d_weight[i][j] + -7.0f);
    }
    for (std::size_t j = 0; j < fresh.d_bias[i].size(); ++j) {
      ASSERT_EQ(added.d_bias[i][j], fresh.d_bias[i][j] + -7.0f);
    }
  }
}

/// Rows of a weight that are one row are as good as copies of it.
TEST(Projection, WeightsMayBeExpanded) {
  Call expanded(70), copied(70);
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    for (std::size_t j = 0; j < copied.weight[i].size(); ++j) {
      copied.weight[i][j] = expanded.weight[i][j % Call::kInput];
    }
  }
  ProjectionForwardArgs forward = expanded.forward();
  for (ProjectionSegment& segment : forward.segments) segment.weight.strides[0] = 0;
  projection_forward(forward);
  ProjectionBackwardArgs backward = expanded.backward();
  for (ProjectionSegmentGradient& segment : backward.segments) segment.weight.strides[0] = 0;
  projection_backward(backward);
  copied.run();
  expect_same_rows(expanded, copied, 70);
}

/// fp16 and bf16 outputs are the fp32 ones, rounded once.
TEST(Projection, OutputsAreRoundedOnce) {
  const std::int64_t M = 67, d = 40, columns = 24;
  const RandomStream random(9, "rounded");
  std::vector<BFloat16> x(M * d), weight(columns * d), narrow(M * columns);
  std::vector<float> wide(M * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = from_float<BFloat16>(random.normal(i));
  for (std::size_t i = 0; i < weight.size(); ++i) {
    weight[i] = from_float<BFloat16>(random.normal(10000 + i) / 6);
  }
  for (const int activation : {0, 1, 2, 3, 4, 5}) {
    const auto run = [&](const TensorView& out) {
      ProjectionSegment segment{
          .weight = TensorView::contiguous(weight.data(), DType::kBFloat16, {columns, d}),
          .activation = static_cast<Activation>(activation),
          .out = out};
      if (segment.activation == Activation::kL2Normalize) segment.head_width = 8;
      projection_forward(
          {.x = TensorView::contiguous(x.data(), DType::kBFloat16, {M, d}), .segments = {segment}});
    };
    run(TensorView::contiguous(wide.data(), DType::kFloat32, {M, columns}));
    run(TensorView::contiguous(narrow.data(), DType::kBFloat16, {M, columns}));
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(narrow[i].bits, from_float<BFloat16>(wide[i]).bits) << activation << ' ' << i;
    }
  }
}

TEST(ProjectionRefusals, ForwardArguments) {
  const auto refused = [](const std::function<void(ProjectionForwardArgs&)>& change,
                          const std::string& text) {
    Call call(5);
    ProjectionForwardArgs args = call.forward();
    change(args);
    expect_refused([&] { projection_forward(args); }, "[projection_forward] " + text);
    EXPECT_EQ(call.out[0], std::vector<float>(call.out[0].size(), -7));
  };
  using Args = ProjectionForwardArgs;
  refused([](Args& a) { a.segments.clear(); }, "segments must be 1 to 8, got 0");
  refused([](Args& a) { a.segments.resize(9, a.segments[0]); }, "segments must be 1 to 8, got 9");
  refused([](Args& a) { a.segments[1].weight.shape[0] = std::int64_t{1} << 31; },
          "segments must have less than 2^31 columns together, got 2147483648");
  refused([](Args& a) { a.segments[2].activation = Activation{6}; },
          "activation2 must be 0 (none), 1 (silu), 2 (sigmoid), 3 (log_sigmoid), 4 (softplus) or 5 "
          "(l2_normalize), got 6");
  refused([](Args& a) { a.segments[1].divisor = 2; },
          "divisor1 is of log_sigmoid, got activation1 = silu");
  refused([](Args& a) { a.segments[1].max = 2; }, "max1 is of softplus, got activation1 = silu");
  refused(
      [](Args& a) {
        a.segments[2].activation = Activation::kLogSigmoid;
        a.segments[2].divisor = 0;
      },
      "divisor2 must be positive, got 0.000000");
  refused(
      [](Args& a) {
        a.segments[2].activation = Activation::kSoftplus;
        a.segments[2].min = 2;
        a.segments[2].max = 1;
      },
      "min2 must not be more than max, got 2.000000 and 1.000000");
  refused([](Args& a) { a.segments[0].head_width.reset(); },
          "head_width0 must be a multiple of 8 in [8,256], got 0");
  for (const std::int64_t width : {-8, 12, 264}) {
    refused([=](Args& a) { a.segments[0].head_width = width; },
            "head_width0 must be a multiple of 8 in [8,256], got " + std::to_string(width));
  }
  refused([](Args& a) { a.segments[0].head_width = 24; },
          "weight0 must have rows for whole heads of 24, got 64");
  refused([](Args& a) { a.segments[2].head_width = 8; },
          "head_width2 is of l2_normalize, got activation2 = none");
  refused([](Args& a) { a.segments[1].inverse_norm = a.segments[0].inverse_norm; },
          "inverse_norm1 is of l2_normalize, got activation1 = silu");
  refused([](Args& a) { a.segments[2].slope = a.segments[1].slope; },
          "slope2 is of silu, sigmoid, log_sigmoid and softplus, got activation2 = none");
}

TEST(ProjectionRefusals, BackwardArguments) {
  const auto refused = [](const std::function<void(ProjectionBackwardArgs&)>& change,
                          const std::string& text) {
    Call call(5);
    ProjectionBackwardArgs args = call.backward();
    change(args);
    expect_refused([&] { projection_backward(args); }, "[projection_backward] " + text);
    EXPECT_EQ(call.dx, std::vector<float>(call.dx.size(), -7));
  };
  using Args = ProjectionBackwardArgs;
  refused([](Args& a) { a.segments.clear(); }, "segments must be 1 to 8, got 0");
  refused([](Args& a) { a.segments[0].out.reset(); }, "inverse_norm0 needs out0");
  refused([](Args& a) { a.segments[0].slope = a.segments[0].out; },
          "slope0 must not be given beside inverse_norm0, which is of l2_normalize");
  refused(
      [](Args& a) { a.segments[0].inverse_norm->shape[1] = 3; },
      "inverse_norm0 must have a column per head of a multiple of 8 in [8,256] columns, got 3 for "
      "64");
  refused([](Args& a) { a.segments[2].bias.reset(); }, "d_bias2 needs bias2");
}

}  // namespace
}  // namespace tandem::tools
