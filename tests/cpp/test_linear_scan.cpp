// linear_scan where its cases do not reach (test_every_case.cpp): no tokens, parts of the
// gradients, gated_scan of the same x, what a forward keeps, NaN, equal bits, refusals.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cli/cases/random.h"
#include "tandem/error.h"
#include "tandem/ops/gated_scan.h"
#include "tandem/ops/linear_scan.h"

namespace tandem::tools {
namespace {

/// Sequences of 70, 0 and 75 tokens and 5 after them; random inputs, and room for every result.
struct Call {
  static constexpr std::int64_t kT = 150, kInput = 24, kD = 150, kN = 3;

  Call() {
    const auto fill = [](std::vector<float>& x, std::int64_t count, const char* name) {
      const RandomStream random(4, name);
      x.resize(count);
      for (std::int64_t i = 0; i < count; ++i) x[i] = random.normal(i);
    };
    fill(u, kT * kInput, "u");
    fill(weight, kD * kInput, "weight");
    fill(g, kT * kD, "g");
    fill(gate, kT * kD, "gate");
    fill(d_out, kT * kD, "d_out");
    fill(initial, kN * kD, "initial");
    fill(d_final, kN * kD, "d_final");
    for (float& value : g) value = -std::fabs(value) / 20;
    out = dg = d_gate = x = std::vector<float>(kT * kD, -7);
    states = std::vector<float>(2 * kD, -7);
    du = std::vector<float>(kT * kInput, -7);
    d_weight = std::vector<float>(kD * kInput, -7);
    final = d_initial = std::vector<float>(kN * kD, -7);
  }

  static TensorView tensor(std::vector<float>& values, const Dims& shape) {
    return TensorView::contiguous(values.data(), DType::kFloat32, shape);
  }
  static TensorView tokens(std::vector<float>& values, std::int64_t width) {
    return tensor(values, {1, kT, width});
  }
  TensorView lists() { return TensorView::contiguous(offsets.data(), DType::kInt32, {kN + 1}); }

  LinearScanForwardArgs forward() {
    return {.u = tokens(u, kInput),
            .weight = tensor(weight, {kD, kInput}),
            .log_decay = tokens(g, kD),
            .gate = tokens(gate, kD),
            .initial_state = tensor(initial, {kN, kD}),
            .cu_seqlens = lists(),
            .out = tokens(out, kD),
            .final_state = tensor(final, {kN, kD})};
  }
  LinearScanForwardArgs keeping() {
    LinearScanForwardArgs args = forward();
    args.x = tokens(x, kD);
    args.states = tensor(states, {1, 2, kD});
    return args;
  }
  LinearScanBackwardArgs backward() {
    return {.u = tokens(u, kInput),
            .weight = tensor(weight, {kD, kInput}),
            .log_decay = tokens(g, kD),
            .gate = tokens(gate, kD),
            .initial_state = tensor(initial, {kN, kD}),
            .cu_seqlens = lists(),
            .d_out = tokens(d_out, kD),
            .d_final_state = tensor(d_final, {kN, kD}),
            .du = tokens(du, kInput),
            .d_weight = tensor(d_weight, {kD, kInput}),
            .d_log_decay = tokens(dg, kD),
            .d_gate = tokens(d_gate, kD),
            .d_initial_state = tensor(d_initial, {kN, kD})};
  }
  void run() {
    linear_scan_forward(keeping());
    linear_scan_backward(backward());
  }

  std::vector<std::int32_t> offsets = {0, 70, 70, 145};
  std::vector<float> u, weight, g, gate, d_out, initial, d_final;
  std::vector<float> out, final, x, states, du, d_weight, dg, d_gate, d_initial;
};

TEST(LinearScan, IsGatedScanOfTheProduct) {
  Call call;
  linear_scan_forward(call.forward());
  std::vector<float> x(Call::kT * Call::kD), out(x.size()), final(call.final.size());
  for (std::int64_t t = 0; t < Call::kT; ++t) {
    for (std::int64_t d = 0; d < Call::kD; ++d) {
      double sum = 0;
      for (std::int64_t i = 0; i < Call::kInput; ++i) {
        sum +=
            static_cast<double>(call.u[t * Call::kInput + i]) * call.weight[d * Call::kInput + i];
      }
      x[t * Call::kD + d] = static_cast<float>(sum);
    }
  }
  gated_scan_forward({.x = Call::tokens(x, Call::kD),
                      .log_decay = Call::tokens(call.g, Call::kD),
                      .gate = Call::tokens(call.gate, Call::kD),
                      .initial_state = Call::tensor(call.initial, {Call::kN, Call::kD}),
                      .cu_seqlens = call.lists(),
                      .out = Call::tokens(out, Call::kD),
                      .final_state = Call::tensor(final, {Call::kN, Call::kD})});
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(call.out[i], out[i], 1e-3) << i;
  for (std::size_t i = 0; i < final.size(); ++i) ASSERT_NEAR(call.final[i], final[i], 1e-4) << i;
}

/// The outputs keep their bits beside x and states, which are written where they are defined.
TEST(LinearScan, KeepsXAndStates) {
  Call plain, call;
  linear_scan_forward(plain.forward());
  linear_scan_forward(call.keeping());
  EXPECT_EQ(call.out, plain.out);
  EXPECT_EQ(call.final, plain.final);
  const auto at = [](std::int64_t t, std::int64_t d) { return t * Call::kD + d; };
  for (std::int64_t d = 0; d < Call::kD; ++d) {
    for (std::int64_t t = 0; t < Call::kT; ++t) {
      double sum = t < 145 ? 0 : -7;
      for (std::int64_t i = 0; i < Call::kInput && t < 145; ++i) {
        sum +=
            static_cast<double>(call.u[t * Call::kInput + i]) * call.weight[d * Call::kInput + i];
      }
      ASSERT_NEAR(call.x[at(t, d)], sum, 1e-4) << t << ' ' << d;
    }
    double state = call.initial[2 * Call::kD + d];
    for (std::int64_t t = 70; t < 128; ++t) {
      state = std::exp(static_cast<double>(call.g[at(t, d)])) * state + call.x[at(t, d)];
    }
    EXPECT_EQ(call.states[d], -7) << "a sequence begins there";
    ASSERT_NEAR(call.states[Call::kD + d], state, 1e-4) << d;
  }
}

/// In fp32 x is not rounded, so that gradients have the bits that they have without it.
TEST(LinearScan, GradientsOfWhatIsKept) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Call plain;
  linear_scan_backward(plain.backward());
  for (const bool with_states : {false, true}) {
    Call call;
    linear_scan_forward(call.keeping());
    std::fill(call.x.begin() + 145 * Call::kD, call.x.end(), kNaN);
    std::fill_n(call.states.begin(), Call::kD, kNaN);
    LinearScanBackwardArgs args = call.backward();
    args.x = Call::tokens(call.x, Call::kD);
    if (with_states) args.states = Call::tensor(call.states, {1, 2, Call::kD});
    linear_scan_backward(args);
    EXPECT_EQ(call.du, plain.du);
    EXPECT_EQ(call.d_weight, plain.d_weight);
    EXPECT_EQ(call.dg, plain.dg);
    EXPECT_EQ(call.d_gate, plain.d_gate);
    EXPECT_EQ(call.d_initial, plain.d_initial);
  }
}

TEST(LinearScan, RefusesWhatIsKeptInAnotherShape) {
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  Call call;
  LinearScanForwardArgs forward = call.keeping();
  forward.states = Call::tensor(call.states, {1, 1, Call::kD});
  EXPECT_EQ(refusal([&] { linear_scan_forward(forward); }),
            "[linear_scan_forward] states must have shape [B,T/128,D] = [1,2,150], got [1,1,150]");
  LinearScanBackwardArgs backward = call.backward();
  backward.states = Call::tensor(call.states, {1, 2, Call::kD});
  EXPECT_EQ(refusal([&] { linear_scan_backward(backward); }),
            "[linear_scan_backward] states needs x");
  backward.x = Call::tokens(call.x, Call::kD);
  backward.states = Call::tensor(call.states, {1, 2 * Call::kD});
  EXPECT_EQ(refusal([&] { linear_scan_backward(backward); }),
            "[linear_scan_backward] states must have shape [B,T/128,D] = [1,2,150], got [1,300]");
}

TEST(LinearScan, NoTokensLeaveTheStatesAsTheyWere) {
  Call call;
  call.offsets = {20, 20, 20, 20};
  call.run();
  EXPECT_EQ(call.final, call.initial);
  EXPECT_EQ(call.d_initial, call.d_final);
  for (const auto* zeros : {&call.out, &call.du, &call.d_weight, &call.dg, &call.d_gate}) {
    EXPECT_EQ(*zeros, std::vector<float>(zeros->size(), 0));
  }
}

/// Each gradient alone has the bits that it has beside the others.
TEST(LinearScan, OnlyWhatIsAskedForIsWritten) {
  Call all;
  linear_scan_backward(all.backward());
  for (int wanted = 0; wanted < 5; ++wanted) {
    Call one;
    LinearScanBackwardArgs args = one.backward();
    if (wanted != 0) args.du.reset();
    if (wanted != 1) args.d_weight.reset();
    if (wanted != 2) args.d_log_decay.reset();
    if (wanted != 3) args.d_gate.reset();
    if (wanted != 4) args.d_initial_state.reset();
    linear_scan_backward(args);
    const auto expect = [&](const std::vector<float>& got, const std::vector<float>& right, int i) {
      EXPECT_EQ(got, i == wanted ? right : std::vector<float>(got.size(), -7)) << i;
    };
    expect(one.du, all.du, 0);
    expect(one.d_weight, all.d_weight, 1);
    expect(one.dg, all.dg, 2);
    expect(one.d_gate, all.d_gate, 3);
    expect(one.d_initial, all.d_initial, 4);
  }
}

/// Whatever is in u and d_out of one sequence, or outside of all, the others keep their bits; the
/// weight's gradient sees no token outside.
TEST(LinearScan, NanStaysInItsSequence) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Call clean;
  clean.run();
  for (const std::int64_t token : {0, 69, 70, 144, 145, 149}) {
    Call dirty;
    dirty.u[token * Call::kInput + 3] = kNaN;
    dirty.d_out[token * Call::kD + 5] = kNaN;
    dirty.run();
    const std::int64_t begin = token < 70 ? 0 : 70, end = token < 70 ? 70 : 145;
    const bool outside = token >= 145;
    for (std::int64_t t = 0; t < Call::kT; ++t) {
      if (!outside && t >= begin && t < end) continue;
      for (std::int64_t d = 0; d < Call::kD; ++d) {
        const std::int64_t at = t * Call::kD + d;
        ASSERT_EQ(dirty.out[at], clean.out[at]) << token << ' ' << t;
        ASSERT_EQ(dirty.dg[at], clean.dg[at]) << token << ' ' << t;
        ASSERT_EQ(dirty.d_gate[at], clean.d_gate[at]) << token << ' ' << t;
      }
      for (std::int64_t i = 0; i < Call::kInput; ++i) {
        ASSERT_EQ(dirty.du[t * Call::kInput + i], clean.du[t * Call::kInput + i]) << token;
      }
    }
    for (std::int64_t n = 0; n < Call::kN; ++n) {
      if (!outside && n == (token < 70 ? 0 : 2)) continue;
      for (std::int64_t d = 0; d < Call::kD; ++d) {
        ASSERT_EQ(dirty.final[n * Call::kD + d], clean.final[n * Call::kD + d]) << token;
        ASSERT_EQ(dirty.d_initial[n * Call::kD + d], clean.d_initial[n * Call::kD + d]) << token;
      }
    }
    if (outside) {
      EXPECT_EQ(dirty.d_weight, clean.d_weight);
    }
  }
}

TEST(LinearScan, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  Call one;
  omp_set_num_threads(1);
  one.run();
  for (const int count : {2, 3, 7}) {
    Call other;
    omp_set_num_threads(count);
    other.run();
    EXPECT_EQ(other.out, one.out) << count;
    EXPECT_EQ(other.final, one.final) << count;
    EXPECT_EQ(other.x, one.x) << count;
    EXPECT_EQ(other.states, one.states) << count;
    EXPECT_EQ(other.du, one.du) << count;
    EXPECT_EQ(other.d_weight, one.d_weight) << count;
    EXPECT_EQ(other.dg, one.dg) << count;
    EXPECT_EQ(other.d_gate, one.d_gate) << count;
    EXPECT_EQ(other.d_initial, one.d_initial) << count;
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace tandem::tools
