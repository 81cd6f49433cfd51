// gemm_swiglu where its cases do not reach (test_every_case.cpp): bits that do not depend on other
// rows or on threads, NaN, extreme gates, parts of the gradients, and what it refuses beyond its
// tables.
#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cli/cases/random.h"
#include "reference/gemm_swiglu.h"
#include "refusals.h"
#include "tandem/error.h"
#include "tandem/ops/gemm_swiglu.h"

namespace tandem::tools {
namespace {

/// Random inputs, with a norm, and room for every result.
struct Call {
  static constexpr std::int64_t kInput = 72, kColumns = 136;

  explicit Call(std::int64_t M) : M(M) {
    const auto random = [](std::int64_t count, const char* name) {
      const RandomStream numbers(4, name);
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i) values[i] = numbers.normal(i);
      return values;
    };
    x = random(M * kInput, "x");
    gate_weight = random(kColumns * kInput, "gate_weight");
    up_weight = random(kColumns * kInput, "up_weight");
    norm_weight = random(kInput, "norm_weight");
    d_out = random(M * kColumns, "d_out");
    for (auto* made : {&out, &gate_slope, &up_slope}) made->assign(M * kColumns, -7);
    rstd.assign(M, -7);
    dx.assign(M * kInput, -7);
    d_gate_weight = d_up_weight = std::vector<float>(kColumns * kInput, -7);
    d_norm_weight.assign(kInput, -7);
  }

  static TensorView tensor(std::vector<float>& values, const Dims& shape) {
    return TensorView::contiguous(values.data(), DType::kFloat32, shape);
  }
  TensorView rows(std::vector<float>& values, std::int64_t columns) {
    return tensor(values, {M, columns});
  }

  GemmSwigluForwardArgs forward() {
    return {.x = rows(x, kInput),
            .gate_weight = tensor(gate_weight, {kColumns, kInput}),
            .up_weight = tensor(up_weight, {kColumns, kInput}),
            .norm_weight = tensor(norm_weight, {kInput}),
            .out = rows(out, kColumns),
            .gate_slope = rows(gate_slope, kColumns),
            .up_slope = rows(up_slope, kColumns),
            .kept_rstd = tensor(rstd, {M})};
  }
  GemmSwigluBackwardArgs backward() {
    return {.x = rows(x, kInput),
            .gate_weight = tensor(gate_weight, {kColumns, kInput}),
            .up_weight = tensor(up_weight, {kColumns, kInput}),
            .norm_weight = tensor(norm_weight, {kInput}),
            .rstd = tensor(rstd, {M}),
            .gate_slope = rows(gate_slope, kColumns),
            .up_slope = rows(up_slope, kColumns),
            .d_out = rows(d_out, kColumns),
            .dx = rows(dx, kInput),
            .d_gate_weight = tensor(d_gate_weight, {kColumns, kInput}),
            .d_up_weight = tensor(d_up_weight, {kColumns, kInput}),
            .d_norm_weight = tensor(d_norm_weight, {kInput})};
  }
  void run() {
    gemm_swiglu_forward(forward());
    gemm_swiglu_backward(backward());
  }

  std::int64_t M;
  std::vector<float> x, gate_weight, up_weight, norm_weight, d_out;
  std::vector<float> out, gate_slope, up_slope, rstd;
  std::vector<float> dx, d_gate_weight, d_up_weight, d_norm_weight;
};

/// Members of a call that have rows, and how many values each has.
constexpr std::pair<std::vector<float> Call::*, std::int64_t> kRows[] = {
    {&Call::out, Call::kColumns},
    {&Call::gate_slope, Call::kColumns},
    {&Call::up_slope, Call::kColumns},
    {&Call::rstd, 1},
    {&Call::dx, Call::kInput}};
constexpr std::vector<float> Call::*kSums[] = {&Call::d_gate_weight, &Call::d_up_weight,
                                               &Call::d_norm_weight};

/// Compares bits, those of NaN too.
void expect_same(const std::vector<float>& got, const std::vector<float>& right, std::int64_t begin,
                 std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(right[i])) << i;
  }
}

void expect_same_rows(const Call& got, const Call& right, std::int64_t begin, std::int64_t end) {
  for (const auto& [member, width] : kRows) {
    expect_same(got.*member, right.*member, begin * width, end * width);
  }
}

TEST(GemmSwiglu, ARowsBitsDoNotDependOnHowManyThereAre) {
  Call most(1100);
  most.run();
  for (const std::int64_t M : {1, 2, 3, 63, 64, 65, 130, 512, 513}) {
    SCOPED_TRACE(M);
    Call call(M);
    call.run();
    expect_same_rows(call, most, 0, M);
  }
}

TEST(GemmSwiglu, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  Call one(1100);
  omp_set_num_threads(1);
  one.run();
  for (const int count : {2, 3, 7}) {
    Call other(1100);
    omp_set_num_threads(count);
    other.run();
    expect_same_rows(other, one, 0, 1100);
    for (const auto sum : kSums) EXPECT_EQ(other.*sum, one.*sum) << count;
  }
  omp_set_num_threads(threads);
}

/// NaN in x, and in the gradient by the output, reaches the results and dx of its row alone, and
/// there it is seen; of every activation.
TEST(GemmSwiglu, NanStaysInItsRow) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const int activation : {0, 1, 2, 3}) {
    const auto run = [&](Call& call) {
      GemmSwigluForwardArgs args = call.forward();
      args.activation = static_cast<GateActivation>(activation);
      gemm_swiglu_forward(args);
      gemm_swiglu_backward(call.backward());
    };
    Call clean(130);
    run(clean);
    for (const std::int64_t row : {0, 63, 64, 129}) {
      SCOPED_TRACE(testing::Message() << activation << " " << row);
      Call dirty(130);
      dirty.x[row * Call::kInput + 5] = kNaN;
      run(dirty);
      expect_same_rows(dirty, clean, 0, row);
      expect_same_rows(dirty, clean, row + 1, 130);
      for (const auto& [member, width] : kRows) {
        for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
          ASSERT_TRUE(std::isnan((dirty.*member)[i])) << i;
        }
      }
      Call behind(130);
      behind.d_out[row * Call::kColumns + 1] = kNaN;
      run(behind);
      expect_same_rows(behind, clean, 0, row);
      expect_same_rows(behind, clean, row + 1, 130);
      EXPECT_TRUE(std::isnan(behind.dx[row * Call::kInput]));
    }
  }
}

/// One row of one column: x and the gate's weight are numbers, u is 1.
GemmSwigluForwardArgs gate_of(std::vector<float>& z, std::vector<float>& ones,
                              std::vector<float>& value, std::vector<float>& slope,
                              GateActivation activation) {
  const auto column = [](std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::kFloat32, {std::ssize(values), 1});
  };
  const auto row = [](std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::kFloat32, {1, std::ssize(values)});
  };
  std::fill(ones.begin(), ones.end(), 1.0f);
  return {.x = TensorView::contiguous(ones.data(), DType::kFloat32, {1, 1}),
          .gate_weight = column(z),
          .up_weight = column(ones),
          .activation = activation,
          .out = row(value),
          .gate_slope = row(slope),
          .up_slope = row(value)};
}

/// From gates that are shut to gates that are open, to a relative error; far out, where f' of the
/// formula would be 0 * inf, too.
TEST(GemmSwiglu, GatesOfAnySize) {
  std::vector<float> z;
  for (int i = -120; i <= 120; ++i) z.push_back(static_cast<float>(i) / 10);
  for (const float far : {30.0f, 1e3f, 1e20f, 3e38f}) z.insert(z.end(), {-far, far});
  for (const int activation : {0, 1, 2, 3}) {
    std::vector<float> ones(z.size()), value(z.size()), slope(z.size()), kept(z.size());
    GemmSwigluForwardArgs args =
        gate_of(z, ones, value, slope, static_cast<GateActivation>(activation));
    args.up_slope->data = kept.data();
    gemm_swiglu_forward(args);
    EXPECT_EQ(value, kept);
    for (std::size_t i = 0; i < z.size(); ++i) {
      SCOPED_TRACE(testing::Message() << activation << " " << z[i]);
      if (std::fabs(z[i]) > 100) {
        EXPECT_EQ(value[i], z[i] > 0 ? z[i] : 0);
        EXPECT_EQ(slope[i], z[i] > 0 ? 1 : 0);
        continue;
      }
      const reference::GateValue right = reference::gate_value(args.activation, z[i]);
      // Of what the exponent's rounding leaves, z^2 / 2 and sqrt(2 / pi) 0.09 z^3 at most.
      EXPECT_NEAR(value[i], right.value, 3e-5 * std::fabs(right.value) + 1e-37);
      EXPECT_NEAR(slope[i], right.slope, 3e-5 * std::fabs(right.slope) + 1e-6);
    }
  }
}

/// Each gradient alone has the bits that it has beside the others.
TEST(GemmSwiglu, OnlyWhatIsAskedForIsWritten) {
  Call all(130);
  all.run();
  constexpr std::vector<float> Call::*kGradients[] = {&Call::dx, &Call::d_gate_weight,
                                                      &Call::d_up_weight, &Call::d_norm_weight};
  for (int wanted = 0; wanted < 4; ++wanted) {
    Call one(130);
    gemm_swiglu_forward(one.forward());
    GemmSwigluBackwardArgs args = one.backward();
    if (wanted != 0) args.dx.reset();
    if (wanted != 1) args.d_gate_weight.reset();
    if (wanted != 2) args.d_up_weight.reset();
    if (wanted != 3) args.d_norm_weight.reset();
    gemm_swiglu_backward(args);
    for (int i = 0; i < 4; ++i) {
      const std::vector<float>& got = one.*kGradients[i];
      EXPECT_EQ(got, i == wanted ? all.*kGradients[i] : std::vector<float>(got.size(), -7)) << i;
    }
  }
}

/// What is kept does not change the result, and the rstd that was kept is as good as a given one.
TEST(GemmSwiglu, AKeptRstdCanBeGiven) {
  Call kept(130), given(130), alone(130);
  kept.run();
  GemmSwigluForwardArgs args = alone.forward();
  args.gate_slope.reset(), args.up_slope.reset(), args.kept_rstd.reset();
  gemm_swiglu_forward(args);
  EXPECT_EQ(alone.out, kept.out);
  args = given.forward();
  args.rstd = Call::tensor(kept.rstd, {130});
  gemm_swiglu_forward(args);
  GemmSwigluBackwardArgs backward = given.backward();
  backward.rstd = args.rstd;
  gemm_swiglu_backward(backward);
  expect_same_rows(given, kept, 0, 130);
  for (const auto sum : kSums) EXPECT_EQ(given.*sum, kept.*sum);
}

/// The sum is rounded once: fp32's, of the same fp32.
TEST(GemmSwiglu, AccumulateAddsToWhatIsThere) {
  Call fresh(130), added(130);
  fresh.run();
  gemm_swiglu_forward(added.forward());
  GemmSwigluBackwardArgs args = added.backward();
  args.accumulate = true;
  gemm_swiglu_backward(args);
  EXPECT_EQ(added.dx, fresh.dx);
  for (const auto sum : kSums) {
    for (std::size_t i = 0; i < (fresh.*sum).size(); ++i) {
      ASSERT_EQ((added.*sum)[i], (fresh.*sum)[i] + -7.0f);
    }
  }
}

/// Rows of a weight that are one row are as good as copies of it.
TEST(GemmSwiglu, AnAddendIsAddedToDxAlone) {
  Call plain(130), added(130);
  plain.run();
  gemm_swiglu_forward(added.forward());
  GemmSwigluBackwardArgs args = added.backward();
  args.addend = plain.rows(plain.x, Call::kInput);
  gemm_swiglu_backward(args);
  for (std::size_t i = 0; i < plain.dx.size(); ++i) {
    ASSERT_NEAR(added.dx[i], plain.dx[i] + plain.x[i], 1e-4);
  }
  for (const auto sum : kSums) EXPECT_EQ(added.*sum, plain.*sum);
}

TEST(GemmSwiglu, WeightsMayBeExpanded) {
  Call expanded(70), copied(70);
  for (std::size_t i = 0; i < copied.up_weight.size(); ++i) {
    copied.up_weight[i] = expanded.up_weight[i % Call::kInput];
  }
  GemmSwigluForwardArgs forward = expanded.forward();
  forward.up_weight.strides[0] = 0;
  gemm_swiglu_forward(forward);
  GemmSwigluBackwardArgs backward = expanded.backward();
  backward.up_weight.strides[0] = 0;
  gemm_swiglu_backward(backward);
  copied.run();
  expect_same_rows(expanded, copied, 0, 70);
}

TEST(GemmSwigluRefusals, ForwardArguments) {
  using Args = GemmSwigluForwardArgs;
  const auto refused = [](const std::function<void(Args&)>& change, const std::string& text) {
    Call call(5);
    Args args = call.forward();
    change(args);
    expect_refused([&] { gemm_swiglu_forward(args); }, "[gemm_swiglu_forward] " + text);
    EXPECT_EQ(call.out, std::vector<float>(call.out.size(), -7));
  };
  refused([](Args& a) { a.activation = GateActivation{4}; },
          "activation must be 0 (silu), 1 (gelu), 2 (gelu_tanh) or 3 (relu), got 4");
  refused([](Args& a) { a.eps = -1e-6; }, "eps must not be negative, got -0.000001");
  refused([](Args& a) { a.gate_slope.reset(); }, "up_slope needs gate_slope");
  refused([](Args& a) { a.up_slope.reset(); }, "gate_slope needs up_slope");
  refused([](Args& a) { a.norm_weight.reset(); }, "kept_rstd needs norm_weight");
  refused(
      [](Args& a) {
        a.rstd = a.kept_rstd;
        a.kept_rstd.reset();
        a.norm_weight.reset();
      },
      "rstd needs norm_weight");
  refused(
      [](Args& a) {
        a.eps = 1e-5;
        a.kept_rstd.reset();
        a.norm_weight.reset();
      },
      "eps needs norm_weight");
  refused(
      [](Args& a) {
        a.rstd = a.kept_rstd;
        a.kept_rstd.reset();
        a.eps = 1e-5;
      },
      "eps must not be given beside rstd, which has it");
}

TEST(GemmSwigluRefusals, BackwardArguments) {
  using Args = GemmSwigluBackwardArgs;
  const auto refused = [](const std::function<void(Args&)>& change, const std::string& text) {
    Call call(5);
    Args args = call.backward();
    change(args);
    expect_refused([&] { gemm_swiglu_backward(args); }, "[gemm_swiglu_backward] " + text);
    EXPECT_EQ(call.dx, std::vector<float>(call.dx.size(), -7));
  };
  refused([](Args& a) { a.rstd.reset(); }, "norm_weight needs rstd");
  refused([](Args& a) { a.norm_weight.reset(); }, "d_norm_weight needs norm_weight");
  refused(
      [](Args& a) {
        a.norm_weight.reset();
        a.d_norm_weight.reset();
      },
      "rstd needs norm_weight");
  refused(
      [](Args& a) {
        a.addend = a.x;
        a.norm_weight.reset();
        a.d_norm_weight.reset();
        a.rstd.reset();
      },
      "addend needs norm_weight");
}

/// More columns than an int can count of both weights: refused before any is looked at.
TEST(GemmSwigluRefusals, Columns) {
  Call call(0);
  GemmSwigluForwardArgs args = call.forward();
  const std::int64_t columns = std::int64_t{1} << 30;
  for (TensorView* weight : {&args.gate_weight, &args.up_weight}) weight->shape[0] = columns;
  for (TensorView* made : {&args.out, &*args.gate_slope, &*args.up_slope}) {
    made->shape[1] = made->strides[0] = columns;
  }
  // Memory beyond the others', which nobody reads.
  args.gate_weight.data = reinterpret_cast<void*>(std::uintptr_t{1} << 50);
  args.up_weight.data = reinterpret_cast<void*>(std::uintptr_t{1} << 51);
  expect_refused([&] { gemm_swiglu_forward(args); },
                 "[gemm_swiglu_forward] gate_weight must have less than 2^30 rows, got 1073741824");
}

}  // namespace
}  // namespace tandem::tools
