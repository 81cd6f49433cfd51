// Heads of rms_norm_gemm where its cases do not reach (test_every_case.cpp): what each piece is,
// bits that do not depend on other rows, NaN, rows of no sequence, and what it refuses beyond its
// tables.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/cases/random.h"
#include "refusals.h"
#include "tandem/error.h"
#include "tandem/ops/rms_norm_gemm.h"

namespace tandem::tools {
namespace {

using Floats = std::vector<float>;

/// Random inputs of three segments, whose heads end in a norm and a rotation, in a rotation, and in
/// a norm; and room for every result.
struct Call {
  static constexpr std::int64_t kInput = 40, kPairs = 8;
  static constexpr std::int64_t kColumns[] = {48, 64, 16}, kWidths[] = {24, 32, 16};
  static constexpr bool kNorms[] = {true, false, true}, kRotates[] = {true, true, false};
  static constexpr std::size_t kSegments = std::size(kColumns);

  explicit Call(std::int64_t M, std::int64_t P = 2000) : M(M), P(P) {
    const auto random = [](std::int64_t count, const std::string& name) {
      const RandomStream numbers(4, name);
      Floats values(count);
      for (std::int64_t i = 0; i < count; ++i) values[i] = numbers.normal(i);
      return values;
    };
    x = random(M * kInput, "x");
    norm_weight = random(kInput, "norm_weight");
    cos.resize(P * kPairs);
    sin.resize(P * kPairs);
    for (std::int64_t i = 0; i < P * kPairs; ++i) {
      const double angle = static_cast<double>(i / kPairs) * std::pow(0.1, i % kPairs * 0.5);
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    rstd.assign(M, -7);
    dx.assign(x.size(), -7);
    for (std::size_t i = 0; i < kSegments; ++i) {
      const std::int64_t columns = kColumns[i];
      const std::string number = std::to_string(i);
      weight[i] = random(columns * kInput, "weight" + number);
      head_norm_weight[i] = random(kWidths[i], "head_norm_weight" + number);
      d_out[i] = random(M * columns, "d_out" + number);
      for (Floats* one : {&out[i], &pre_norm[i]}) one->assign(M * columns, -7);
      head_rstd[i].assign(M * columns / kWidths[i], -7);
      d_weight[i].assign(columns * kInput, -7);
      d_head_norm_weight[i].assign(kWidths[i], -7);
    }
  }

  static TensorView tensor(Floats& values, const Dims& shape) {
    return TensorView::contiguous(values.data(), DType::kFloat32, shape);
  }
  static TensorView tensor(std::vector<std::int32_t>& values) {
    return TensorView::contiguous(values.data(), DType::kInt32, {std::ssize(values)});
  }
  TensorView rows(Floats& values, std::int64_t columns) { return tensor(values, {M, columns}); }

  template <class Args>
  Args rotated(Args args) {
    args.rope_cos = tensor(cos, {P, kPairs});
    args.rope_sin = tensor(sin, {P, kPairs});
    if (!positions.empty()) args.rope_positions = tensor(positions);
    if (!cu_seqlens.empty()) args.cu_seqlens = tensor(cu_seqlens);
    args.rope_length = length;
    args.rope_layout = layout;
    return args;
  }
  RmsNormGemmForwardArgs forward() {
    RmsNormGemmForwardArgs args{.x = rows(x, kInput),
                                .norm_weight = tensor(norm_weight, {kInput}),
                                .segments = {},
                                .kept_rstd = tensor(rstd, {M})};
    for (std::size_t i = 0; i < kSegments; ++i) {
      RmsNormGemmSegment segment{.weight = tensor(weight[i], {kColumns[i], kInput}),
                                 .head_width = kWidths[i],
                                 .rotates = kRotates[i],
                                 .out = rows(out[i], kColumns[i])};
      if (kNorms[i]) {
        segment.head_norm_weight = tensor(head_norm_weight[i], {kWidths[i]});
        segment.pre_norm = rows(pre_norm[i], kColumns[i]);
        segment.head_rstd = rows(head_rstd[i], kColumns[i] / kWidths[i]);
      }
      args.segments.push_back(segment);
    }
    return rotated(args);
  }
  RmsNormGemmBackwardArgs backward() {
    RmsNormGemmBackwardArgs args{.x = rows(x, kInput),
                                 .norm_weight = tensor(norm_weight, {kInput}),
                                 .rstd = tensor(rstd, {M}),
                                 .segments = {},
                                 .dx = rows(dx, kInput)};
    for (std::size_t i = 0; i < kSegments; ++i) {
      RmsNormGemmSegmentGradient segment{.weight = tensor(weight[i], {kColumns[i], kInput}),
                                         .head_width = kWidths[i],
                                         .rotates = kRotates[i],
                                         .d_out = rows(d_out[i], kColumns[i]),
                                         .d_weight = tensor(d_weight[i], {kColumns[i], kInput})};
      if (kNorms[i]) {
        segment.head_norm_weight = tensor(head_norm_weight[i], {kWidths[i]});
        segment.pre_norm = rows(pre_norm[i], kColumns[i]);
        segment.head_rstd = rows(head_rstd[i], kColumns[i] / kWidths[i]);
        segment.d_head_norm_weight = tensor(d_head_norm_weight[i], {kWidths[i]});
      }
      args.segments.push_back(segment);
    }
    return rotated(args);
  }
  void run() {
    rms_norm_gemm_forward(forward());
    rms_norm_gemm_backward(backward());
  }

  std::int64_t M, P;
  Floats x, norm_weight, cos, sin, rstd, dx;
  Floats weight[kSegments], head_norm_weight[kSegments], d_out[kSegments], out[kSegments];
  Floats pre_norm[kSegments], head_rstd[kSegments];
  Floats d_weight[kSegments], d_head_norm_weight[kSegments];
  std::vector<std::int32_t> positions, cu_seqlens;
  std::optional<std::int64_t> length;
  RopeLayout layout = RopeLayout::kRotateHalf;
};

/// The first rows of what has rows.
std::vector<Floats> rows_of(const Call& call, std::int64_t begin, std::int64_t end) {
  std::vector<Floats> all;
  const auto add = [&](const Floats& values, std::int64_t width) {
    all.emplace_back(values.begin() + begin * width, values.begin() + end * width);
  };
  add(call.dx, Call::kInput);
  for (std::size_t i = 0; i < Call::kSegments; ++i) {
    add(call.out[i], Call::kColumns[i]);
    add(call.pre_norm[i], Call::kColumns[i]);
    add(call.head_rstd[i], Call::kColumns[i] / Call::kWidths[i]);
  }
  return all;
}

/// With neither a norm nor a rotation a width of heads changes nothing.
TEST(RmsNormGemmHeads, AWidthAloneChangesNothing) {
  Call plain(70), wide(70);
  const auto run = [](Call& call, bool width) {
    RmsNormGemmForwardArgs forward = call.forward();
    RmsNormGemmBackwardArgs backward = call.backward();
    for (auto* args : {&forward}) args->rope_cos.reset(), args->rope_sin.reset();
    backward.rope_cos.reset(), backward.rope_sin.reset();
    const auto strip = [&](auto& segment) {
      if (!width) segment.head_width.reset();
      segment.head_norm_weight.reset(), segment.pre_norm.reset(), segment.head_rstd.reset();
      segment.rotates = false;
    };
    for (auto& segment : forward.segments) strip(segment);
    for (auto& segment : backward.segments) strip(segment), segment.d_head_norm_weight.reset();
    rms_norm_gemm_forward(forward);
    rms_norm_gemm_backward(backward);
  };
  run(plain, false);
  run(wide, true);
  EXPECT_EQ(rows_of(plain, 0, 70), rows_of(wide, 0, 70));
}

/// What is kept is the product, and with it the output of the norm alone is its definition.
TEST(RmsNormGemmHeads, TheNormDividesByTheRootOfTheMean) {
  Call call(33);
  RmsNormGemmForwardArgs args = call.forward();
  for (RmsNormGemmSegment& segment : args.segments) {
    if (segment.head_norm_weight) segment.head_eps = 0.5;
  }
  rms_norm_gemm_forward(args);
  const std::int64_t width = Call::kWidths[2];
  for (std::int64_t row = 0; row < 33; ++row) {
    const float* z = call.pre_norm[2].data() + row * width;
    double sum = 0;
    for (std::int64_t j = 0; j < width; ++j) sum += static_cast<double>(z[j]) * z[j];
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(width) + 0.5);
    EXPECT_NEAR(call.head_rstd[2][row], rstd, 1e-6 * rstd);
    for (std::int64_t j = 0; j < width; ++j) {
      EXPECT_NEAR(call.out[2][row * width + j], z[j] * rstd * call.head_norm_weight[2][j], 1e-5);
    }
  }
}

/// A row at position 0 is not turned, a turned pair keeps its length, and what lies behind the
/// rotated columns is left alone.
TEST(RmsNormGemmHeads, TheRotationTurnsPairsOfTheFirstColumns) {
  for (const RopeLayout layout : {RopeLayout::kRotateHalf, RopeLayout::kInterleaved}) {
    Call still(20), turned(20);
    still.positions.assign(20, 0);
    still.layout = turned.layout = layout;
    still.run();
    turned.run();
    const std::int64_t width = Call::kWidths[1], heads = Call::kColumns[1] / width;
    bool differs = false;
    for (std::int64_t i = 0; i < 20 * heads; ++i) {
      const float* before = still.out[1].data() + i * width;
      const float* after = turned.out[1].data() + i * width;
      const std::int64_t row = i / heads;
      for (std::int64_t j = 0; j < Call::kPairs; ++j) {
        const bool halves = layout == RopeLayout::kRotateHalf;
        const std::int64_t a = halves ? j : 2 * j, b = halves ? j + Call::kPairs : 2 * j + 1;
        const float c = turned.cos[row * Call::kPairs + j], s = turned.sin[row * Call::kPairs + j];
        EXPECT_NEAR(after[a], before[a] * c - before[b] * s, 1e-5);
        EXPECT_NEAR(after[b], before[b] * c + before[a] * s, 1e-5);
        differs = differs || std::fabs(after[a] - before[a]) > 0.1;
      }
      for (std::int64_t j = 2 * Call::kPairs; j < width; ++j) EXPECT_EQ(after[j], before[j]);
    }
    EXPECT_TRUE(differs);
  }
}

/// The same positions by each way to say them give the same bits.
TEST(RmsNormGemmHeads, PositionsFollowFromSequences) {
  const auto expect = [](const std::function<void(Call&)>& set,
                         const std::vector<std::int32_t>& positions) {
    Call one(12, 6), given(12, 6);
    set(one);
    given.positions = positions;
    one.run();
    given.run();
    EXPECT_EQ(rows_of(one, 0, 12), rows_of(given, 0, 12));
    EXPECT_EQ(one.d_weight[0], given.d_weight[0]);
    EXPECT_EQ(one.d_head_norm_weight[0], given.d_head_norm_weight[0]);
  };
  expect([](Call& call) { call.length = 4; }, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  // Before the first sequence rows are counted from 0, behind the last from its end.
  expect([](Call& call) { call.cu_seqlens = {2, 5, 5, 10}; }, {0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 0, 1});
  // What leaves the table is clamped.
  expect([](Call& call) { call.cu_seqlens = {0, 12}; }, {0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5});
  expect([](Call& call) { call.positions = {-3, 9, 1, 1, 2, 3, 4, 5, 6, 7, 0, 1 << 30}; },
         {0, 5, 1, 1, 2, 3, 4, 5, 5, 5, 0, 5});
  Call rows(6, 6), given(6, 6);
  given.positions = {0, 1, 2, 3, 4, 5};
  rows.run();
  given.run();
  EXPECT_EQ(rows_of(rows, 0, 6), rows_of(given, 0, 6));
}

TEST(RmsNormGemmHeads, ARowsBitsDoNotDependOnHowManyThereAre) {
  Call most(600);
  most.run();
  for (const std::int64_t M : {1, 3, 64, 65, 513}) {
    SCOPED_TRACE(M);
    Call call(M);
    call.run();
    EXPECT_EQ(rows_of(call, 0, M), rows_of(most, 0, M));
  }
}

TEST(RmsNormGemmHeads, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  Call one(600);
  omp_set_num_threads(1);
  one.run();
  for (const int count : {2, 3, 7}) {
    Call other(600);
    omp_set_num_threads(count);
    other.run();
    EXPECT_EQ(rows_of(other, 0, 600), rows_of(one, 0, 600)) << count;
    EXPECT_EQ(other.d_head_norm_weight[0], one.d_head_norm_weight[0]) << count;
    EXPECT_EQ(other.d_head_norm_weight[2], one.d_head_norm_weight[2]) << count;
  }
  omp_set_num_threads(threads);
}

TEST(RmsNormGemmHeads, WithoutRowsSumsAreZero) {
  Call call(0);
  call.run();
  EXPECT_EQ(call.d_head_norm_weight[0], Floats(Call::kWidths[0], 0));
  EXPECT_EQ(call.d_weight[0], Floats(call.d_weight[0].size(), 0));
}

TEST(RmsNormGemmHeads, AccumulateAddsToWhatIsThere) {
  Call fresh(130), added(130);
  fresh.run();
  rms_norm_gemm_forward(added.forward());
  RmsNormGemmBackwardArgs args = added.backward();
  args.accumulate = true;
  rms_norm_gemm_backward(args);
  for (std::size_t j = 0; j < fresh.d_head_norm_weight[0].size(); ++j) {
    EXPECT_EQ(added.d_head_norm_weight[0][j], fresh.d_head_norm_weight[0][j] + -7.0f);
  }
}

/// NaN in x, and in the gradient by an output, reaches its row alone, and there it is seen.
TEST(RmsNormGemmHeads, NanStaysInItsRow) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Call clean(130);
  clean.run();
  for (const std::int64_t row : {0, 63, 64, 129}) {
    SCOPED_TRACE(row);
    Call dirty(130), behind(130);
    dirty.x[row * Call::kInput + 5] = kNaN;
    behind.d_out[0][row * Call::kColumns[0] + 1] = kNaN;
    for (Call* call : {&dirty, &behind}) {
      call->run();
      EXPECT_EQ(rows_of(*call, 0, row), rows_of(clean, 0, row));
      EXPECT_EQ(rows_of(*call, row + 1, 130), rows_of(clean, row + 1, 130));
      EXPECT_TRUE(std::isnan(call->dx[row * Call::kInput]));
    }
    EXPECT_TRUE(std::isnan(dirty.out[0][row * Call::kColumns[0]]));
    EXPECT_TRUE(std::isnan(dirty.head_rstd[2][row]));
  }
}

/// A head's NaN, by its own weights' product, does not reach another head.
TEST(RmsNormGemmHeads, NanOfAHeadStaysInIt) {
  Call clean(20), dirty(20);
  dirty.weight[0][3] = std::numeric_limits<float>::infinity();  // a column of head 0
  clean.run();
  dirty.run();
  const std::int64_t width = Call::kWidths[0];
  for (std::int64_t row = 0; row < 20; ++row) {
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t at = row * Call::kColumns[0] + j;
      EXPECT_FALSE(dirty.out[0][at] == clean.out[0][at]);
      EXPECT_EQ(dirty.out[0][at + width], clean.out[0][at + width]);
    }
  }
}

TEST(RmsNormGemmHeadsRefusals, ForwardArguments) {
  const auto refused = [](const std::function<void(RmsNormGemmForwardArgs&)>& change,
                          const std::string& text) {
    Call call(6, 6);
    RmsNormGemmForwardArgs args = call.forward();
    change(args);
    expect_refused([&] { rms_norm_gemm_forward(args); }, "[rms_norm_gemm_forward] " + text);
    EXPECT_EQ(call.out[0], Floats(call.out[0].size(), -7));
  };
  using Args = RmsNormGemmForwardArgs;
  for (const int width : {0, -8, 4, 12, 264}) {
    refused([&](Args& a) { a.segments[1].head_width = width; },
            "head_width1 must be a multiple of 8 in [8,256], got " + std::to_string(width));
  }
  refused([](Args& a) { a.segments[1].head_width = 24; },
          "weight1 must have rows for whole heads of 24, got 64");
  refused([](Args& a) { a.segments[1].head_width.reset(); }, "rotates1 needs head_width1");
  refused([](Args& a) { a.segments[2].head_width.reset(); }, "head_norm_weight2 needs head_width2");
  refused([](Args& a) { a.segments[2].head_norm_weight->shape = {8}; },
          "head_norm_weight2 must have shape [head_width2] = [16], got [8]");
  refused([](Args& a) { a.segments[0].head_eps = -1; },
          "head_eps0 must not be negative, got -1.000000");
  refused([](Args& a) { a.segments[1].head_eps = 1; }, "head_eps1 needs head_norm_weight1");
  refused([](Args& a) { a.segments[2].head_norm_weight.reset(); },
          "pre_norm2 needs head_norm_weight2");
  refused(
      [](Args& a) {
        a.segments[2].head_norm_weight.reset();
        a.segments[2].pre_norm.reset();
      },
      "head_rstd2 needs head_norm_weight2");
  refused([](Args& a) { a.rope_cos.reset(); }, "rotates0 needs rope_cos");
  refused([](Args& a) { a.rope_sin.reset(); }, "rope_cos needs rope_sin");
  refused([](Args& a) { a.segments[0].rotates = a.segments[1].rotates = false; },
          "rope_cos needs a segment that rotates");
  refused(
      [](Args& a) {
        for (auto* table : {&a.rope_cos, &a.rope_sin}) {
          (*table)->shape = {3, 16};
          (*table)->strides = {16, 1};
        }
      },
      "rope_cos must have at most head_width0 / 2 = 12 columns, got 16");
  for (const int layout : {-1, 2}) {
    refused(
        [&](Args& a) { a.rope_layout = static_cast<RopeLayout>(layout); },
        "rope_layout must be 0 (rotate half) or 1 (interleaved), got " + std::to_string(layout));
  }
  refused([](Args& a) { a.rope_length = 0; }, "rope_length must be positive, got 0");
  refused([](Args& a) { a.rope_length = 4; }, "rope_length must divide M = 6, got 4");
  std::vector<std::int32_t> offsets = {0, 1, 2, 3, 4, 6};
  refused(
      [&](Args& a) {
        a.rope_length = 3;
        a.rope_positions = Call::tensor(offsets);
      },
      "at most one of rope_positions, cu_seqlens and rope_length may be given");
  refused([&](Args& a) { a.rope_cos->shape[0] = a.rope_sin->shape[0] = 5; },
          "rope_cos must have a row for each of 6 positions, got 5");
  refused(
      [&](Args& a) {
        a.rope_cos->shape[0] = a.rope_sin->shape[0] = 2;
        a.rope_length = 3;
      },
      "rope_cos must have a row for each of 3 positions, got 2");
  Floats narrow(6);
  refused([&](Args& a) { a.rope_positions = Call::tensor(narrow, {6}); },
          "rope_positions must have dtype int32, got fp32");
  refused(
      [&](Args& a) {
        a.segments[0].rotates = a.segments[1].rotates = false;
        a.rope_cos.reset();
        a.rope_sin.reset();
        a.cu_seqlens = Call::tensor(offsets);
      },
      "cu_seqlens needs rope_cos");
}

TEST(RmsNormGemmHeadsRefusals, BackwardArguments) {
  const auto refused = [](const std::function<void(RmsNormGemmBackwardArgs&)>& change,
                          const std::string& text) {
    Call call(6, 6);
    RmsNormGemmBackwardArgs args = call.backward();
    change(args);
    expect_refused([&] { rms_norm_gemm_backward(args); }, "[rms_norm_gemm_backward] " + text);
    EXPECT_EQ(call.dx, Floats(call.dx.size(), -7));
  };
  using Args = RmsNormGemmBackwardArgs;
  refused([](Args& a) { a.segments[0].pre_norm.reset(); }, "head_norm_weight0 needs pre_norm0");
  refused([](Args& a) { a.segments[0].head_rstd.reset(); }, "head_norm_weight0 needs head_rstd0");
  refused([](Args& a) { a.segments[1].head_width = 20; },
          "head_width1 must be a multiple of 8 in [8,256], got 20");
  refused([](Args& a) { a.rope_length = 5; }, "rope_length must divide M = 6, got 5");
  refused([](Args& a) { a.rope_cos.reset(); }, "rotates0 needs rope_cos");
}

TEST(RmsNormGemmHeadCases, FieldsFitTogether) {
  const auto message = [](const std::string& segment, const std::string& fields) -> std::string {
    try {
      parse_cases("rms_norm_gemm",
                  R"([{"name":"a","axes":{"M":1,"d":8},"dtype":["bf16"],"tags":[],"segments":[")" +
                      segment + "\"]" + fields + "}]",
                  "f.json");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message("64 heads 32 norm_fp32 rope bias", R"(,"rope":"cu_seqlens","rope_width":6)"),
            "");
  EXPECT_EQ(message("64 heads 24", ""),
            "f.json: case a: segments: must have whole heads: 64 heads 24");
  EXPECT_EQ(message("64 none rope", ""),
            "f.json: case a: segments: has no such segment: 64 none rope");
  EXPECT_EQ(message("64 heads", ""), "f.json: case a: segments: has no such segment: 64 heads");
  EXPECT_EQ(message("64 silu", ""), "f.json: case a: segments: must have no activation: 64 silu");
  EXPECT_EQ(message("64 heads 32 rope", R"(,"rope":"all")"),
            "f.json: case a: rope: must be rows, length, positions or cu_seqlens, got all");
  EXPECT_EQ(message("64 heads 32 rope", R"(,"rope_width":34)"),
            "f.json: case a: rope_width: must fit all heads that rotate");
  EXPECT_EQ(message("64 heads 32 rope", R"(,"rope_width":7)"),
            "f.json: case a: rope_width: must be even");
}

TEST(RmsNormGemmHeadCases, AWrittenTableReadsBackAsItself) {
  const std::vector<Case> cases = load_cases("rms_norm_gemm");
  EXPECT_EQ(parse_cases("rms_norm_gemm", write_cases("rms_norm_gemm", cases), "f.json"), cases);
}

}  // namespace
}  // namespace tandem::tools
