// gated_scan where its cases do not reach (test_every_case.cpp): no tokens, parts of the gradients,
// a sequence in two calls, exact zeros, equal bits.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cli/cases/random.h"
#include "tandem/ops/gated_scan.h"

namespace tandem::tools {
namespace {

/// One sequence, random inputs, and room for every output and gradient.
struct Call {
  explicit Call(std::int64_t T = 150, std::int64_t D = 40) : T(T), D(D) {
    const auto fill = [](std::vector<float>& x, std::int64_t count, const char* name) {
      const RandomStream random(4, name);
      x.resize(count);
      for (std::int64_t i = 0; i < count; ++i) x[i] = random.normal(i);
    };
    fill(x, T * D, "x");
    fill(g, T * D, "g");
    fill(gate, T * D, "gate");
    fill(d_out, T * D, "d_out");
    fill(initial, D, "initial");
    fill(d_final, D, "d_final");
    for (float& value : g) value = -std::fabs(value) / 20;
    out = dx = dg = d_gate = std::vector<float>(T * D, -7);
    final = d_initial = std::vector<float>(D, -7);
  }

  TensorView tokens(std::vector<float>& values, std::int64_t begin, std::int64_t end) const {
    return TensorView::contiguous(values.data() + begin * D, DType::kFloat32, {1, end - begin, D});
  }
  TensorView state(std::vector<float>& values) const {
    return TensorView::contiguous(values.data(), DType::kFloat32, {1, D});
  }

  /// Tokens [begin,end).
  GatedScanForwardArgs forward(std::int64_t begin, std::int64_t end) {
    return {.x = tokens(x, begin, end),
            .log_decay = tokens(g, begin, end),
            .gate = tokens(gate, begin, end),
            .initial_state = state(initial),
            .out = tokens(out, begin, end),
            .final_state = state(final)};
  }
  GatedScanForwardArgs forward() { return forward(0, T); }

  GatedScanBackwardArgs backward(std::int64_t begin, std::int64_t end) {
    return {.x = tokens(x, begin, end),
            .log_decay = tokens(g, begin, end),
            .gate = tokens(gate, begin, end),
            .initial_state = state(initial),
            .d_out = tokens(d_out, begin, end),
            .d_final_state = state(d_final),
            .dx = tokens(dx, begin, end),
            .d_log_decay = tokens(dg, begin, end),
            .d_gate = tokens(d_gate, begin, end),
            .d_initial_state = state(d_initial)};
  }
  GatedScanBackwardArgs backward() { return backward(0, T); }

  std::int64_t T, D;
  std::vector<float> x, g, gate, d_out, initial, d_final;
  std::vector<float> out, final, dx, dg, d_gate, d_initial;
};

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

TEST(GatedScan, NoTokensLeaveTheStatesAsTheyWere) {
  Call call;
  gated_scan_forward(call.forward(0, 0));
  EXPECT_EQ(call.final, call.initial);
  gated_scan_backward(call.backward(0, 0));
  EXPECT_EQ(call.d_initial, call.d_final);

  GatedScanForwardArgs without = call.forward(0, 0);
  without.initial_state.reset();
  gated_scan_forward(without);
  EXPECT_EQ(call.final, std::vector<float>(call.D, 0));
}

/// A sequence that ends in the middle of another call continues from its state, and the gradient by
/// that state goes on in the call before.
TEST(GatedScan, StatesCarryASequenceOver) {
  constexpr std::int64_t kSplit = 70;
  Call whole, parts;
  gated_scan_forward(whole.forward());
  gated_scan_backward(whole.backward());

  std::vector<float> middle(parts.D), d_middle(parts.D);
  GatedScanForwardArgs first = parts.forward(0, kSplit), second = parts.forward(kSplit, parts.T);
  first.final_state = second.initial_state = parts.state(middle);
  gated_scan_forward(first);
  gated_scan_forward(second);
  expect_near(parts.out, whole.out, 1e-5);
  expect_near(parts.final, whole.final, 1e-5);

  GatedScanBackwardArgs last = parts.backward(kSplit, parts.T), before = parts.backward(0, kSplit);
  last.initial_state = parts.state(middle);
  last.d_initial_state = before.d_final_state = parts.state(d_middle);
  gated_scan_backward(last);
  gated_scan_backward(before);
  expect_near(parts.dx, whole.dx, 1e-5);
  expect_near(parts.dg, whole.dg, 1e-4);
  expect_near(parts.d_gate, whole.d_gate, 1e-4);
  expect_near(parts.d_initial, whole.d_initial, 1e-5);
}

/// Each gradient alone has the bits that it has beside the others.
TEST(GatedScan, OnlyWhatIsAskedForIsWritten) {
  Call all;
  gated_scan_backward(all.backward());
  const std::vector<float> untouched(all.dx.size(), -7);
  for (int wanted = 0; wanted < 4; ++wanted) {
    Call one;
    GatedScanBackwardArgs args = one.backward();
    if (wanted != 0) args.dx.reset();
    if (wanted != 1) args.d_log_decay.reset();
    if (wanted != 2) args.d_gate.reset();
    if (wanted != 3) args.d_initial_state.reset();
    gated_scan_backward(args);
    EXPECT_EQ(one.dx, wanted == 0 ? all.dx : untouched);
    EXPECT_EQ(one.dg, wanted == 1 ? all.dg : untouched);
    EXPECT_EQ(one.d_gate, wanted == 2 ? all.d_gate : untouched);
    EXPECT_EQ(one.d_initial == all.d_initial, wanted == 3);
  }
}

/// exp(-100) is nothing in fp32: every state is its own token's x, to the bit, and nothing reaches
/// another token's gradient.
TEST(GatedScan, DecaysThatUnderflowCarryNothing) {
  Call call(1000, 72);
  call.g.assign(call.g.size(), -100.0f);
  call.initial.assign(call.D, 1e30f);
  GatedScanForwardArgs forward = call.forward();
  forward.gate.reset();
  gated_scan_forward(forward);
  EXPECT_EQ(call.out, call.x);
  EXPECT_EQ(call.final, std::vector<float>(call.x.end() - call.D, call.x.end()));

  GatedScanBackwardArgs backward = call.backward();
  backward.gate.reset();
  backward.d_gate.reset();
  backward.d_final_state.reset();
  gated_scan_backward(backward);
  EXPECT_EQ(call.dx, call.d_out);
  EXPECT_EQ(call.dg, std::vector<float>(call.dg.size(), 0));
  EXPECT_EQ(call.d_initial, std::vector<float>(call.D, 0));
}

/// Small decays whose product underflows over a chunk.
TEST(GatedScan, ProductsThatUnderflowAreNoNaN) {
  Call call(1000, 24);
  call.g.assign(call.g.size(), -20.0f);
  gated_scan_forward(call.forward());
  gated_scan_backward(call.backward());
  for (const auto* values : {&call.out, &call.final, &call.dx, &call.dg, &call.d_gate}) {
    for (const float value : *values) ASSERT_TRUE(std::isfinite(value));
  }
}

/// A reset forgets exactly, whatever the state was; so does its gradient.
TEST(GatedScan, AResetForgetsNanAndInf) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Call clean, dirty;
  for (Call* call : {&clean, &dirty}) {
    for (std::int64_t d = 0; d < call->D; ++d) call->g[80 * call->D + d] = -kInf;
  }
  dirty.initial.assign(dirty.D, kNaN);
  for (std::int64_t d = 0; d < dirty.D; ++d) {
    dirty.x[70 * dirty.D + d] = kInf;
    dirty.d_out[100 * dirty.D + d] = kNaN;
  }
  for (Call* call : {&clean, &dirty}) {
    gated_scan_forward(call->forward());
    gated_scan_backward(call->backward());
  }
  const auto equal = [&](const std::vector<float>& a, const std::vector<float>& b,
                         std::int64_t begin, std::int64_t end) {
    return std::equal(a.begin() + begin * clean.D, a.begin() + end * clean.D,
                      b.begin() + begin * clean.D);
  };
  EXPECT_TRUE(equal(dirty.out, clean.out, 80, clean.T));
  EXPECT_EQ(dirty.final, clean.final);
  EXPECT_TRUE(equal(dirty.dx, clean.dx, 0, 80));
  EXPECT_TRUE(equal(dirty.d_gate, clean.d_gate, 80, 100));
  EXPECT_EQ(dirty.d_initial, clean.d_initial);
  for (std::int64_t d = 0; d < clean.D; ++d) EXPECT_EQ(dirty.dg[80 * clean.D + d], 0);
}

/// The walks by blocks and by chunks, whichever the number of threads asks for, give the same bits.
TEST(GatedScan, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  for (const std::int64_t D : {40, 300}) {
    Call one(1000, D);
    omp_set_num_threads(1);
    gated_scan_forward(one.forward());
    gated_scan_backward(one.backward());
    for (const int count : {2, 3, 7}) {
      Call other(1000, D);
      omp_set_num_threads(count);
      gated_scan_forward(other.forward());
      gated_scan_backward(other.backward());
      EXPECT_EQ(other.out, one.out) << count;
      EXPECT_EQ(other.final, one.final) << count;
      EXPECT_EQ(other.dx, one.dx) << count;
      EXPECT_EQ(other.dg, one.dg) << count;
      EXPECT_EQ(other.d_gate, one.d_gate) << count;
      EXPECT_EQ(other.d_initial, one.d_initial) << count;
    }
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace tandem::tools
