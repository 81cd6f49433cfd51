// gated_output where its cases do not reach (test_every_case.cpp): bits that do not depend on other
// rows or on threads, NaN, parts of the results and gradients, both eps, and what it refuses beyond
// its tables.
#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cli/cases/random.h"
#include "reference/gated_output.h"
#include "refusals.h"
#include "tandem/error.h"
#include "tandem/ops/gated_output.h"

namespace tandem::tools {
namespace {

using Forward = GatedOutputForwardArgs;
using Backward = GatedOutputBackwardArgs;

/// What a call has in front of its product, beside all that it may have behind it.
struct Kind {
  bool gates = true, groups = true, behind = false;
  OutputGate activation = OutputGate::kSilu;
  OutputNorm norm = OutputNorm::kLayerNorm;
};

constexpr Kind kKinds[] = {
    {},
    {.behind = true, .activation = OutputGate::kSigmoid},
    {.groups = false, .norm = OutputNorm::kRmsNorm},
    {.gates = false, .norm = OutputNorm::kRmsNorm},
    {.gates = false, .groups = false},
    {.groups = false, .activation = OutputGate::kNone, .norm = OutputNorm::kNone}};

/// Random inputs, and room for every result.
struct Call {
  static constexpr std::int64_t kIn = 72, kOut = 136, kWidth = 24, kGroups = kIn / kWidth;

  explicit Call(std::int64_t M, const Kind& kind = {}) : M(M), kind(kind) {
    const auto random = [](std::int64_t count, const char* name) {
      const RandomStream numbers(4, name);
      std::vector<float> values(count);
      for (std::int64_t i = 0; i < count; ++i) values[i] = numbers.normal(i);
      return values;
    };
    o = random(M * kIn, "o");
    gate = random(M * kIn, "gate");
    weight = random(kOut * kIn, "weight");
    residual = random(M * kOut, "residual");
    bias = random(kOut, "bias");
    group_weight = random(kWidth, "group_weight");
    norm_weight = random(kOut, "norm_weight");
    norm_bias = random(kOut, "norm_bias");
    d_out = random(M * kOut, "d_out");
    d_sum = random(M * kOut, "d_sum");
    for (auto* made : {&out, &sum, &d_residual}) made->assign(M * kOut, -7);
    for (auto* made : {&gated, &d_o, &d_gate}) made->assign(M * kIn, -7);
    for (auto* made : {&mean, &rstd}) made->assign(M, -7);
    group_rstd.assign(M * kGroups, -7);
    d_weight.assign(kOut * kIn, -7);
    for (auto* made : {&d_bias, &d_norm_weight, &d_norm_bias}) made->assign(kOut, -7);
    d_group_weight.assign(kWidth, -7);
  }

  static TensorView tensor(std::vector<float>& values, const Dims& shape) {
    return TensorView::contiguous(values.data(), DType::kFloat32, shape);
  }
  TensorView rows(std::vector<float>& values, std::int64_t columns) {
    return tensor(values, {M, columns});
  }

  Forward forward() {
    Forward args{.o = rows(o, kIn), .weight = tensor(weight, {kOut, kIn}), .out = rows(out, kOut)};
    args.bias = tensor(bias, {kOut});
    args.residual = rows(residual, kOut);
    set_input(args);
    args.norm = kind.norm;
    if (kind.norm != OutputNorm::kNone) {
      args.norm_weight = tensor(norm_weight, {kOut});
      args.sum = rows(sum, kOut);
      args.rstd = tensor(rstd, {M});
    }
    if (kind.norm == OutputNorm::kLayerNorm) {
      args.norm_bias = tensor(norm_bias, {kOut});
      args.mean = tensor(mean, {M});
    }
    return args;
  }
  Backward backward() {
    Backward args{.o = rows(o, kIn), .weight = tensor(weight, {kOut, kIn})};
    args.bias = tensor(bias, {kOut});
    set_input(args);
    args.norm = kind.norm;
    if (kind.norm != OutputNorm::kNone) {
      args.norm_weight = tensor(norm_weight, {kOut});
      args.sum = rows(sum, kOut);
      args.rstd = tensor(rstd, {M});
      args.d_sum = rows(d_sum, kOut);
      args.d_norm_weight = tensor(d_norm_weight, {kOut});
    }
    if (kind.norm == OutputNorm::kLayerNorm) {
      args.norm_bias = tensor(norm_bias, {kOut});
      args.mean = tensor(mean, {M});
      args.d_norm_bias = tensor(d_norm_bias, {kOut});
    }
    args.d_out = rows(d_out, kOut);
    args.d_o = rows(d_o, kIn);
    if (kind.gates) args.d_gate = rows(d_gate, kIn);
    args.d_residual = rows(d_residual, kOut);
    args.d_weight = tensor(d_weight, {kOut, kIn});
    args.d_bias = tensor(d_bias, {kOut});
    if (kind.groups) args.d_group_norm_weight = tensor(d_group_weight, {kWidth});
    return args;
  }
  void run() {
    gated_output_forward(forward());
    gated_output_backward(backward());
  }

  std::int64_t M;
  Kind kind;
  std::vector<float> o, gate, weight, residual, bias, group_weight, norm_weight, norm_bias;
  std::vector<float> d_out, d_sum;
  std::vector<float> out, sum, mean, rstd, gated, group_rstd;
  std::vector<float> d_o, d_gate, d_residual, d_weight, d_bias, d_group_weight, d_norm_weight,
      d_norm_bias;

 private:
  template <class Args>
  void set_input(Args& args) {
    if (kind.gates) {
      args.gate = rows(gate, kIn);
      args.gate_activation = kind.activation;
    }
    if (kind.gates || kind.groups) args.gated = rows(gated, kIn);
    if (!kind.groups) return;
    args.group_norm_weight = tensor(group_weight, {kWidth});
    args.group_width = kWidth;
    args.norm_behind_gate = kind.behind;
    args.group_rstd = rows(group_rstd, kGroups);
  }
};

/// Members of a call that have rows, and how many values each has.
constexpr std::pair<std::vector<float> Call::*, std::int64_t> kRows[] = {
    {&Call::out, Call::kOut}, {&Call::sum, Call::kOut},   {&Call::mean, 1},
    {&Call::rstd, 1},         {&Call::gated, Call::kIn},  {&Call::group_rstd, Call::kGroups},
    {&Call::d_o, Call::kIn},  {&Call::d_gate, Call::kIn}, {&Call::d_residual, Call::kOut}};
constexpr std::vector<float> Call::*kSums[] = {&Call::d_weight, &Call::d_bias,
                                               &Call::d_group_weight, &Call::d_norm_weight,
                                               &Call::d_norm_bias};

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

TEST(GatedOutput, ARowsBitsDoNotDependOnHowManyThereAre) {
  for (const Kind& kind : kKinds) {
    Call most(1100, kind);
    most.run();
    for (const std::int64_t M : {1, 2, 3, 63, 64, 65, 130, 512, 513}) {
      SCOPED_TRACE(M);
      Call call(M, kind);
      call.run();
      expect_same_rows(call, most, 0, M);
    }
  }
}

TEST(GatedOutput, ThreadsDoNotChangeTheBits) {
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

/// NaN in an input, or in the gradient by an output, reaches the results and gradients of its row
/// alone, and there it is seen.
TEST(GatedOutput, NanStaysInItsRow) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const Kind& kind : kKinds) {
    Call clean(130, kind);
    clean.run();
    const bool normalizes = kind.norm != OutputNorm::kNone;
    for (const std::int64_t row : {0, 63, 64, 129}) {
      const auto check = [&](std::vector<float> Call::*input, std::int64_t width,
                             std::vector<std::vector<float> Call::*> reached) {
        Call dirty(130, kind);
        (dirty.*input)[row * width + 5] = kNaN;
        dirty.run();
        expect_same_rows(dirty, clean, 0, row);
        expect_same_rows(dirty, clean, row + 1, 130);
        for (const auto member : reached) {
          const std::int64_t columns = std::ssize(dirty.*member) / 130;
          for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) {
            ASSERT_TRUE(std::isnan((dirty.*member)[i])) << i;
          }
        }
      };
      SCOPED_TRACE(row);
      check(&Call::o, Call::kIn, {&Call::out});
      if (kind.gates) check(&Call::gate, Call::kIn, {&Call::out});
      check(&Call::residual, Call::kOut,
            normalizes ? std::vector{&Call::out, &Call::d_residual, &Call::d_o}
                       : std::vector<std::vector<float> Call::*>{});
      check(&Call::d_out, Call::kOut, {&Call::d_o});
      if (normalizes) check(&Call::d_sum, Call::kOut, {&Call::d_o});
    }
  }
}

/// Each gradient alone has the bits that it has beside the others.
TEST(GatedOutput, OnlyWhatIsAskedForIsWritten) {
  using Reset = void (*)(Backward&);
  constexpr std::pair<std::vector<float> Call::*, Reset> kGradients[] = {
      {&Call::d_o, [](Backward& a) { a.d_o.reset(); }},
      {&Call::d_gate, [](Backward& a) { a.d_gate.reset(); }},
      {&Call::d_residual, [](Backward& a) { a.d_residual.reset(); }},
      {&Call::d_weight, [](Backward& a) { a.d_weight.reset(); }},
      {&Call::d_bias, [](Backward& a) { a.d_bias.reset(); }},
      {&Call::d_group_weight, [](Backward& a) { a.d_group_norm_weight.reset(); }},
      {&Call::d_norm_weight, [](Backward& a) { a.d_norm_weight.reset(); }},
      {&Call::d_norm_bias, [](Backward& a) { a.d_norm_bias.reset(); }}};
  for (const Kind& kind : kKinds) {
    Call all(130, kind);
    all.run();
    for (const auto& [wanted, unset] : kGradients) {
      Call one(130, kind);
      gated_output_forward(one.forward());
      Backward args = one.backward();
      for (const auto& [other, reset] : kGradients) {
        if (other != wanted) reset(args);
      }
      gated_output_backward(args);
      for (const auto& [member, reset] : kGradients) {
        const std::vector<float>& got = one.*member;
        EXPECT_EQ(got, member == wanted ? all.*member : std::vector<float>(got.size(), -7));
      }
    }
  }
}

/// What is kept does not change the results, and a is as good made again.
TEST(GatedOutput, WhatIsKeptChangesNoBit) {
  for (const Kind& kind : kKinds) {
    Call kept(130, kind), alone(130, kind);
    kept.run();
    Forward args = alone.forward();
    args.sum.reset(), args.mean.reset(), args.rstd.reset();
    args.gated.reset(), args.group_rstd.reset();
    gated_output_forward(args);
    EXPECT_EQ(alone.out, kept.out);
    gated_output_forward(alone.forward());
    std::fill(alone.gated.begin(), alone.gated.end(), -7.0f);
    Backward backward = alone.backward();
    backward.gated.reset();
    gated_output_backward(backward);
    for (const auto sum : kSums) EXPECT_EQ(alone.*sum, kept.*sum);
    EXPECT_EQ(alone.d_o, kept.d_o);
    EXPECT_EQ(alone.d_gate, kept.d_gate);
  }
}

/// An absent gradient of an output is one of zeros.
TEST(GatedOutput, GradientsOfOutputsMayBeAbsent) {
  for (const bool is_sum : {false, true}) {
    Call zeros(130), absent(130);
    std::vector<float>& zero = is_sum ? zeros.d_sum : zeros.d_out;
    std::fill(zero.begin(), zero.end(), 0.0f);
    zeros.run();
    gated_output_forward(absent.forward());
    Backward args = absent.backward();
    (is_sum ? args.d_sum : args.d_out).reset();
    gated_output_backward(args);
    for (const auto& [member, width] : kRows) EXPECT_EQ(absent.*member, zeros.*member);
    for (const auto sum : kSums) EXPECT_EQ(absent.*sum, zeros.*sum);
  }
}

/// The sum is rounded once: fp32's, of the same fp32.
TEST(GatedOutput, AccumulateAddsToWhatIsThere) {
  Call fresh(130), added(130);
  fresh.run();
  gated_output_forward(added.forward());
  Backward args = added.backward();
  args.accumulate = true;
  gated_output_backward(args);
  expect_same_rows(added, fresh, 0, 130);
  for (const auto sum : kSums) {
    for (std::size_t i = 0; i < (fresh.*sum).size(); ++i) {
      ASSERT_EQ((added.*sum)[i], (fresh.*sum)[i] + -7.0f);
    }
  }
}

/// Without rows the gradients of weights and biases are sums of nothing.
TEST(GatedOutput, NoRows) {
  Call none(0);
  none.run();
  for (const auto sum : kSums) EXPECT_EQ(none.*sum, std::vector<float>((none.*sum).size(), 0));
}

/// Rows that are one row are as good as copies of it.
TEST(GatedOutput, WeightsAndResidualsMayBeExpanded) {
  Call expanded(70), copied(70);
  const auto copy = [](std::vector<float>& values, std::int64_t width) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i % width];
  };
  copy(copied.weight, Call::kIn);
  copy(copied.residual, Call::kOut);
  Forward forward = expanded.forward();
  forward.weight.strides[0] = forward.residual->strides[0] = 0;
  gated_output_forward(forward);
  Backward backward = expanded.backward();
  backward.weight.strides[0] = 0;
  gated_output_backward(backward);
  copied.run();
  expect_same_rows(expanded, copied, 0, 70);
}

/// Each eps is its own norm's, and each weight or bias may be absent.
TEST(GatedOutput, TakesEachNumberAndVectorAlone) {
  const std::function<void(Forward&)> changes[] = {
      [](Forward& a) { a.eps = 3; },
      [](Forward& a) { a.group_eps = 3; },
      [](Forward& a) { a.norm_weight.reset(); },
      [](Forward& a) { a.norm_bias.reset(); },
      [](Forward& a) { a.bias.reset(); },
      [](Forward& a) { a.residual.reset(); },
      [](Forward& a) { a.norm_weight.reset(), a.norm_bias.reset(); }};
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    SCOPED_TRACE(i);
    Call call(3);
    for (float& value : call.o) value *= 0.1f;  // so that an eps shows
    Forward args = call.forward();
    changes[i](args);
    gated_output_forward(args);
    const reference::GatedOutputWeights weights(args);
    for (std::int64_t row = 0; row < call.M; ++row) {
      const auto input = reference::gated_input_row(args, weights, row);
      const auto norm = reference::output_norm_row(
          args, weights, reference::output_sum_row(args, weights, input.a, row));
      EXPECT_NEAR(call.mean[row], norm.mean, 1e-5);
      EXPECT_NEAR(call.rstd[row], norm.rstd, 1e-5);
      EXPECT_NEAR(call.group_rstd[row * Call::kGroups], input.group_rstd[0], 1e-4);
      for (std::int64_t j = 0; j < Call::kOut; ++j) {
        ASSERT_NEAR(call.out[row * Call::kOut + j], norm.out[j], 2e-5);
      }
    }
  }
}

/// Rows of 1e4 and of 1e-6 and rows of zeros through each norm; one row's size changes no other's
/// result. With eps = 0 a row of zeros gives NaN, and no other does.
TEST(GatedOutput, RowsOfAnySize) {
  for (const Kind& kind : kKinds) {
    if (!kind.groups && kind.gates) continue;
    Call call(4, kind);
    constexpr float kSizes[] = {1e4f, 1e-6f, 0, 1};
    for (std::int64_t i = 0; i < std::ssize(call.o); ++i) call.o[i] *= kSizes[i / Call::kIn];
    std::fill(call.residual.begin(), call.residual.end(), 0.0f);
    std::fill(call.bias.begin(), call.bias.end(), 0.0f);
    for (const double eps : {1e-6, 0.0}) {
      SCOPED_TRACE(eps);
      Forward args = call.forward();
      if (kind.groups) args.group_eps = eps;
      args.eps = eps;
      gated_output_forward(args);
      const reference::GatedOutputWeights weights(args);
      for (std::int64_t row = 0; row < 4; ++row) {
        const auto input = reference::gated_input_row(args, weights, row);
        const auto norm = reference::output_norm_row(
            args, weights, reference::output_sum_row(args, weights, input.a, row));
        for (std::int64_t j = 0; j < Call::kOut; ++j) {
          const float got = call.out[row * Call::kOut + j];
          ASSERT_EQ(std::isnan(got), eps == 0 && row == 2);
          if (std::isnan(got)) continue;
          ASSERT_NEAR(got, norm.out[j], 1e-4 * (1 + std::fabs(norm.out[j])));
        }
      }
    }
  }
}

TEST(GatedOutputRefusals, ForwardArguments) {
  const auto refused = [](const std::function<void(Forward&)>& change, const std::string& text,
                          const Kind& kind = {}) {
    Call call(5, kind);
    Forward args = call.forward();
    change(args);
    expect_refused([&] { gated_output_forward(args); }, "[gated_output_forward] " + text);
    EXPECT_EQ(call.out, std::vector<float>(call.out.size(), -7));
  };
  constexpr Kind kPlain = {.gates = false, .groups = false, .norm = OutputNorm::kNone};
  refused([](Forward& a) { a.gate_activation = OutputGate{3}; },
          "gate_activation must be 0 (none), 1 (silu) or 2 (sigmoid), got 3");
  refused([](Forward& a) { a.norm = OutputNorm{-1}; },
          "norm must be 0 (none), 1 (layer_norm) or 2 (rms_norm), got -1");
  refused([](Forward& a) { a.eps = -1e-6; }, "eps must not be negative, got -0.000001");
  refused([](Forward& a) { a.group_eps = -1e-6; }, "group_eps must not be negative, got -0.000001");
  for (const int width : {0, -24, 25, 144}) {
    refused([=](Forward& a) { a.group_width = width; },
            "group_width must be a divisor of d_in = 72, got " + std::to_string(width));
  }
  refused([](Forward& a) { a.group_width = 12, a.group_rstd.reset(); },
          "group_norm_weight must have shape [group_width] = [12] or [d_in] = [72], got [24]");
  refused([](Forward& a) { a.gate.reset(); }, "gate_activation needs gate");
  refused(
      [](Forward& a) {
        a.gate.reset();
        a.gate_activation = OutputGate::kNone;
      },
      "norm_behind_gate needs gate", {.behind = true});
  refused([](Forward& a) { a.norm_behind_gate = true; }, "norm_behind_gate needs group_norm_weight",
          {.groups = false});
  refused([](Forward& a) { a.group_norm_weight.reset(); }, "group_width needs group_norm_weight");
  refused([](Forward& a) { a.group_width.reset(); }, "group_rstd needs group_width");
  refused(
      [](Forward& a) {
        a.group_width.reset();
        a.group_rstd.reset();
      },
      "group_norm_weight needs group_width");
  refused([](Forward& a) { a.group_eps = 1e-5; }, "group_eps needs group_norm_weight", kPlain);
  Call other(5);
  refused([&](Forward& a) { a.gated = other.forward().gated; },
          "gated needs gate or group_norm_weight", kPlain);
  const std::string of_norms = " is of layer_norm and rms_norm, got norm = none";
  const std::string of_layer = " is of layer_norm, got norm = ";
  refused([&](Forward& a) { a.norm_weight = other.forward().norm_weight; },
          "norm_weight" + of_norms, kPlain);
  refused([&](Forward& a) { a.sum = other.forward().sum; }, "sum" + of_norms, kPlain);
  refused([&](Forward& a) { a.rstd = other.forward().rstd; }, "rstd" + of_norms, kPlain);
  refused([](Forward& a) { a.eps = 1e-5; }, "eps" + of_norms, kPlain);
  refused([&](Forward& a) { a.norm_bias = other.forward().norm_bias; },
          "norm_bias" + of_layer + "none", kPlain);
  refused([](Forward& a) { a.norm = OutputNorm::kRmsNorm; }, "norm_bias" + of_layer + "rms_norm");
  refused(
      [](Forward& a) {
        a.norm = OutputNorm::kRmsNorm;
        a.norm_bias.reset();
      },
      "mean" + of_layer + "rms_norm");
}

TEST(GatedOutputRefusals, BackwardArguments) {
  const auto refused = [](const std::function<void(Backward&)>& change, const std::string& text,
                          const Kind& kind = {}) {
    Call call(5, kind);
    Backward args = call.backward();
    change(args);
    expect_refused([&] { gated_output_backward(args); }, "[gated_output_backward] " + text);
    EXPECT_EQ(call.d_o, std::vector<float>(call.d_o.size(), -7));
  };
  constexpr Kind kPlain = {.gates = false, .groups = false, .norm = OutputNorm::kNone};
  refused([](Backward& a) { a.gate_activation = OutputGate{3}; },
          "gate_activation must be 0 (none), 1 (silu) or 2 (sigmoid), got 3");
  refused([](Backward& a) { a.group_width = 7; },
          "group_width must be a divisor of d_in = 72, got 7");
  refused([](Backward& a) { a.d_out.reset(), a.d_sum.reset(); },
          "d_out or d_sum must be given, got neither");
  refused([](Backward& a) { a.d_out.reset(); }, "d_out or d_sum must be given, got neither",
          kPlain);
  Call other(5);
  refused([&](Backward& a) { a.d_sum = other.backward().d_sum; },
          "d_sum is of layer_norm and rms_norm, got norm = none", kPlain);
  refused([&](Backward& a) { a.sum = other.backward().sum; },
          "sum is of layer_norm and rms_norm, got norm = none", kPlain);
  refused([](Backward& a) { a.sum.reset(); }, "norm needs sum");
  refused([](Backward& a) { a.rstd.reset(); }, "norm needs rstd");
  refused([](Backward& a) { a.mean.reset(); }, "norm needs mean");
  refused([](Backward& a) { a.group_rstd.reset(); }, "group_norm_weight needs group_rstd");
  refused([](Backward& a) { a.gate.reset(); }, "d_gate needs gate");
  refused([](Backward& a) { a.gate.reset(), a.d_gate.reset(); }, "gate_activation needs gate");
  refused([&](Backward& a) { a.gated = other.backward().gated; },
          "gated needs gate or group_norm_weight", kPlain);
}

}  // namespace
}  // namespace tandem::tools
