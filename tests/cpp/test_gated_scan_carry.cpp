// gated_scan_decay, gated_scan_carry and its backward where their cases do not reach
// (test_every_case.cpp): a scan from a state against one from nothing with the state added, and its
// gradient, what NaN and inf reach, exact zeros.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "cli/calls/backend.h"
#include "cli/cases/random.h"
#include "planting.h"
#include "tandem/ops/gated_scan.h"

namespace tandem::tools {
namespace {

/// A sequence of 5 chunks, the last one short, on the CPU.
struct Parts {
  static constexpr std::int64_t T = 300, D = 40, kChunks = 5;

  explicit Parts(const std::function<float(std::int64_t t, std::int64_t d)>& decay_of) {
    const auto fill = [](std::vector<float>& x, std::int64_t count, const char* name) {
      const RandomStream random(4, name);
      x.resize(count);
      for (std::int64_t i = 0; i < count; ++i) x[i] = random.normal(i);
    };
    fill(x, T * D, "x");
    fill(gate, T * D, "gate");
    fill(carry, D, "carry");
    decay.resize(T * D);
    for (std::int64_t i = 0; i < T * D; ++i) decay[i] = decay_of(i / D, i % D);
    before.assign(kChunks * D, -7);
    sums = before;
    total = state = final = d_carry = std::vector<float>(D, -7);
    out = whole = std::vector<float>(T * D, -7);
  }

  static TensorView tokens(std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::kFloat32, {1, T, D});
  }
  static TensorView line(std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::kFloat32, {1, D});
  }

  static TensorView lines(std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::kFloat32, {1, kChunks, D});
  }

  void multiply() {
    gated_scan_decay({.decay = tokens(decay), .before = lines(before), .total = line(total)});
  }
  void add_carry() {
    gated_scan_carry({.out = tokens(out),
                      .decay = tokens(decay),
                      .gate = tokens(gate),
                      .before = lines(before),
                      .carry = line(carry)});
  }
  /// Takes x for the outputs' gradients.
  void sum_outputs() {
    multiply();
    gated_scan_carry_backward({.d_out = tokens(x),
                               .decay = tokens(decay),
                               .gate = tokens(gate),
                               .before = lines(before),
                               .sums = lines(sums),
                               .d_carry = line(d_carry)});
  }

  /// Scans from the carry into `whole` and `final`, and from nothing into `out` and `state`, adding
  /// the carry to `out`.
  void run() {
    gated_scan_forward({.x = tokens(x),
                        .decay = tokens(decay),
                        .gate = tokens(gate),
                        .initial_state = line(carry),
                        .out = tokens(whole),
                        .final_state = line(final)});
    gated_scan_forward({.x = tokens(x),
                        .decay = tokens(decay),
                        .gate = tokens(gate),
                        .out = tokens(out),
                        .final_state = line(state)});
    alone = out;
    multiply();
    add_carry();
  }

  std::vector<float> x, gate, decay, carry, before, total, out, alone, whole, state, final, sums,
      d_carry;
};

void expect_close(const std::vector<float>& got, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 2e-5f * (1 + std::fabs(expected[i]))) << i;
  }
}

TEST(GatedScanCarry, GivesWhatAScanFromTheStateGives) {
  const RandomStream random(5, "decay");
  const std::vector<std::function<float(std::int64_t, std::int64_t)>> decays = {
      [](std::int64_t, std::int64_t) { return 1.0f; },
      [](std::int64_t, std::int64_t) { return 1.005f; },
      [&](std::int64_t t, std::int64_t d) {
        return 1 - 0.01f * std::fabs(random.normal(t * 40 + d));
      },
      [](std::int64_t t, std::int64_t d) { return t == 5 * d ? 0.0f : 0.999f; },
      [](std::int64_t, std::int64_t d) { return d % 2 ? 0.25f : 1.0f; }};
  for (const auto& decay : decays) {
    Parts parts(decay);
    parts.run();
    expect_close(parts.out, parts.whole);
    for (std::int64_t d = 0; d < Parts::D; ++d) {
      parts.state[d] += parts.total[d] * parts.carry[d];
    }
    expect_close(parts.state, parts.final);
    parts.sum_outputs();
    std::vector<float> by_scan(Parts::D), nothing(Parts::D);
    gated_scan_backward({.x = Parts::tokens(parts.x),
                         .decay = Parts::tokens(parts.decay),
                         .gate = Parts::tokens(parts.gate),
                         .initial_state = Parts::line(nothing),
                         .d_out = Parts::tokens(parts.x),
                         .d_initial_state = Parts::line(by_scan)});
    expect_close(parts.d_carry, by_scan);
  }
}

TEST(GatedScanCarry, NothingBehindADecayOf0AddsToTheGradient) {
  const auto zero_at = [](std::int64_t d) { return d % 3 == 0 ? 0 : 5 * d; };
  Parts parts([&](std::int64_t t, std::int64_t d) { return t == zero_at(d) ? 0.0f : 0.99f; });
  std::vector<float> expected(Parts::D);
  for (std::int64_t i = 0; i < Parts::T * Parts::D; ++i) {
    if (i / Parts::D >= zero_at(i % Parts::D)) parts.x[i] = 0;
  }
  parts.sum_outputs();
  expected = parts.d_carry;
  for (std::int64_t i = 0; i < Parts::T * Parts::D; ++i) {
    if (i / Parts::D < zero_at(i % Parts::D)) continue;
    parts.x[i] = i % 2 ? kNaN : kInf;
    parts.gate[i] = -kInf;
  }
  parts.sum_outputs();
  EXPECT_EQ(parts.d_carry, expected);
  EXPECT_EQ(parts.d_carry[3], 0.0f);
  EXPECT_NE(parts.d_carry[1], 0.0f);
}

TEST(GatedScanCarry, WhatIsNotFiniteReachesTheGradientOfItsChannel) {
  Parts parts([](std::int64_t, std::int64_t d) { return d % 2 ? 1.0f : 0.01f; });
  for (std::int64_t d = 0; d < Parts::D; ++d) parts.x[150 * Parts::D + d] = kNaN;
  parts.sum_outputs();
  for (std::int64_t d = 0; d < Parts::D; ++d) {
    EXPECT_EQ(std::isfinite(parts.d_carry[d]), d % 2 == 0) << d;  // of 0.01^150 nothing is left
  }
}

TEST(GatedScanCarry, OfNaNAndInfinityReachesWhatAScanReaches) {
  for (const float value : {kNaN, kInf, -kInf}) {
    // Of every second channel; of the channels that have a decay of 0, up to it.
    const auto zero_at = [](std::int64_t d) { return d % 4 < 2 ? 7 * d : Parts::T; };
    Parts parts([&](std::int64_t t, std::int64_t d) { return t == zero_at(d) ? 0.0f : 0.99f; });
    for (std::int64_t d = 0; d < Parts::D; d += 2) parts.carry[d] = value;
    parts.run();
    for (std::int64_t i = 0; i < Parts::T * Parts::D; ++i) {
      const std::int64_t t = i / Parts::D, d = i % Parts::D;
      const bool reached = d % 2 == 0 && t < zero_at(d);
      EXPECT_EQ(std::isfinite(parts.out[i]), !reached) << t << " " << d;
      EXPECT_EQ(std::isfinite(parts.out[i]), std::isfinite(parts.whole[i])) << t << " " << d;
      if (t >= zero_at(d)) EXPECT_EQ(parts.out[i], parts.alone[i]);
    }
  }
}

TEST(GatedScanCarry, LeavesWhatItDoesNotReach) {
  Parts parts([](std::int64_t, std::int64_t) { return 0.01f; });  // nothing after 19 tokens
  for (std::int64_t i = 100 * Parts::D; i < Parts::T * Parts::D; ++i) {
    parts.gate[i] = i % 2 ? kInf : -kInf;  // silu(-inf) is NaN
  }
  parts.run();
  EXPECT_NE(std::memcmp(parts.out.data(), parts.alone.data(), 10 * Parts::D * 4), 0);
  const std::int64_t begin = 64 * Parts::D, bytes = (Parts::T - 64) * Parts::D * 4;
  EXPECT_EQ(std::memcmp(parts.out.data() + begin, parts.alone.data() + begin, bytes), 0);
}

TEST(GatedScanCarry, ADecayOf0EndsDecaysThatAreNotFinite) {
  Parts parts([](std::int64_t t, std::int64_t d) {
    if (t == 70) return d % 2 ? kNaN : kInf;
    return t == 75 + d ? 0.0f : 1.0f;
  });
  parts.multiply();
  for (std::int64_t d = 0; d < Parts::D; ++d) {
    EXPECT_EQ(parts.total[d], 0.0f) << d;
    EXPECT_EQ(parts.before[4 * Parts::D + d], 0.0f) << d;
    EXPECT_EQ(parts.before[Parts::D + d], 1.0f) << d;
  }
}

/// Every channel has its own bits, on a GPU too: a NaN or infinity in one changes no other.
void expect_channels_apart(Device device) {
  const std::vector<Layout> layouts = {
      {R"([{"name": "a", "directions": ["carry"], "axes": {"B": 3, "T": 170, "D": 40}, "dtype": ["bf16"],
        "decay": {"kind": "log_decay", "distribution": "normal"}, "tags": ["check"]}])",
       {0, 170, 340, 510}},
      {R"([{"name": "odd", "directions": ["carry"], "axes": {"B": 3, "T": 170, "D": 40}, "dtype": ["bf16"],
        "decay": {"kind": "log_decay", "distribution": "normal"}, "strides": "odd", "tags": ["check"]}])",
       {0, 170, 340, 510}}};
  const Planting planting = {.operation = find_operation("gated_scan", "carry"),
                             .by_token = {"log_decay", "gate"},
                             .states = {"carry"},
                             .forwards_only = true,
                             .layouts = layouts,
                             .heads = 40};
  expect_contained(planting, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}, device);
}

TEST(GatedScanCarry, ChannelsStayApart) { expect_channels_apart(Device::cpu()); }

TEST(GpuGatedScanCarry, ChannelsStayApart) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_channels_apart(Device::cuda());
}

}  // namespace
}  // namespace tandem::tools
