// gla_backward where its cases do not reach (test_every_case.cpp):
// parts of the outputs, no tokens, resets, a sequence in two calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// One sequence, two heads that share a query/key head, random inputs, and room for every gradient.
struct Call {
  static constexpr std::int64_t kT = 150, kH = 2, kK = 16, kV = 24;

  Call() {
    const auto fill = [](std::vector<float>& x, std::int64_t count, const char* name) {
      const RandomStream random(4, name);
      x.resize(count);
      for (std::int64_t i = 0; i < count; ++i) x[i] = random.normal(i);
    };
    fill(q, kT * kK, "q");
    fill(k, kT * kK, "k");
    fill(v, kT * kH * kV, "v");
    fill(d_o, kT * kH * kV, "d_o");
    fill(g, kT * kH, "g");
    fill(initial, kH * kK * kV, "initial");
    fill(d_final, kH * kK * kV, "d_final");
    for (float& x : g) x = -std::fabs(x) / 20;
    dq = dk = std::vector<float>(q.size());
    dv.resize(v.size());
    dg.resize(g.size());
    d_initial.resize(initial.size());
  }

  /// Tokens [begin,end), with every gradient.
  GlaBackwardArgs args(std::int64_t begin = 0, std::int64_t end = kT) {
    const auto tensor = [&](std::vector<float>& x, std::int64_t heads, std::int64_t dim) {
      return TensorView::contiguous(x.data() + begin * heads * dim, DType::kFloat32,
                                    {1, end - begin, heads, dim});
    };
    const auto decay = [&](std::vector<float>& x) {
      return TensorView::contiguous(x.data() + begin * kH, DType::kFloat32, {1, end - begin, kH});
    };
    const auto state = [](std::vector<float>& x) {
      return TensorView::contiguous(x.data(), DType::kFloat32, {1, kH, kK, kV});
    };
    GlaBackwardArgs args;
    args.q = tensor(q, 1, kK);
    args.k = tensor(k, 1, kK);
    args.v = tensor(v, kH, kV);
    args.log_decay = decay(g);
    args.initial_state = state(initial);
    args.d_o = tensor(d_o, kH, kV);
    args.d_final_state = state(d_final);
    args.dq = tensor(dq, 1, kK);
    args.dk = tensor(dk, 1, kK);
    args.dv = tensor(dv, kH, kV);
    args.d_log_decay = decay(dg);
    args.d_initial_state = state(d_initial);
    return args;
  }

  std::vector<float> q, k, v, d_o, g, initial, d_final;
  std::vector<float> dq, dk, dv, dg, d_initial;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  double wrong = 0, right = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    wrong += std::pow(got[i] - expected[i], 2);
    right += std::pow(expected[i], 2);
  }
  EXPECT_LE(std::sqrt(wrong / right), tolerance);
}

/// Each gradient alone has the bits that it has among all.
TEST(GlaBackward, OutputsDoNotDependOnWhichAreAskedFor) {
  using Output = std::optional<TensorView> GlaBackwardArgs::*;
  Call all;
  gla_backward(all.args());
  const auto check = [&](Output output, std::vector<float> Call::*memory) {
    Call one;
    const GlaBackwardArgs everything = one.args();
    GlaBackwardArgs args = everything;
    args.dq = args.dk = args.dv = args.d_log_decay = args.d_initial_state = std::nullopt;
    args.*output = everything.*output;
    gla_backward(args);
    EXPECT_EQ(one.*memory, all.*memory);
    for (const auto other : {&Call::dq, &Call::dk, &Call::dv, &Call::dg, &Call::d_initial}) {
      if (other == memory) continue;
      EXPECT_EQ(one.*other, std::vector<float>((one.*other).size()));
    }
  };
  check(&GlaBackwardArgs::dq, &Call::dq);
  check(&GlaBackwardArgs::dk, &Call::dk);
  check(&GlaBackwardArgs::dv, &Call::dv);
  check(&GlaBackwardArgs::d_log_decay, &Call::dg);
  check(&GlaBackwardArgs::d_initial_state, &Call::d_initial);
}

/// Saved states spare work on a GPU; the CPU does without them.
TEST(GlaBackward, SavedStatesDoNotChangeTheBits) {
  Call plain, call;
  gla_backward(plain.args());
  GlaBackwardArgs args = call.args();
  std::vector<float> o(call.v.size()), saved(2 * Call::kH * Call::kV * Call::kK);
  args.saved_states =
      TensorView::contiguous(saved.data(), DType::kFloat32, {1, 2, Call::kH, Call::kV, Call::kK});
  gla_forward({.q = args.q,
               .k = args.k,
               .v = args.v,
               .log_decay = args.log_decay,
               .initial_state = args.initial_state,
               .o = TensorView::contiguous(o.data(), DType::kFloat32, args.v.shape),
               .saved_states = args.saved_states});
  gla_backward(args);
  for (const auto gradient : {&Call::dq, &Call::dk, &Call::dv, &Call::dg, &Call::d_initial}) {
    EXPECT_EQ(call.*gradient, plain.*gradient);
  }
}

TEST(GlaBackward, NothingAskedForIsNoError) {
  Call call;
  GlaBackwardArgs args = call.args();
  args.dq = args.dk = args.dv = args.d_log_decay = args.d_initial_state = std::nullopt;
  EXPECT_NO_THROW(gla_backward(args));
}

/// d_initial_state = d_final_state, or 0; the gradient of a constant decay is 0.
TEST(GlaBackward, NoTokens) {
  Call call;
  std::vector<float> constant(Call::kH, -0.1f), d_constant(Call::kH, -1);
  GlaBackwardArgs args = call.args(0, 0);
  args.log_decay = TensorView::contiguous(constant.data(), DType::kFloat32, {Call::kH});
  args.d_log_decay = TensorView::contiguous(d_constant.data(), DType::kFloat32, {Call::kH});
  gla_backward(args);
  EXPECT_EQ(call.d_initial, call.d_final);
  EXPECT_EQ(d_constant, std::vector<float>(Call::kH, 0));
  args.d_final_state.reset();
  gla_backward(args);
  EXPECT_EQ(call.d_initial, std::vector<float>(call.d_initial.size(), 0));
}

TEST(GlaBackward, NoBatchesIsNoError) {
  GlaBackwardArgs args;
  args.q = args.k = args.v = args.d_o =
      TensorView::contiguous(nullptr, DType::kBFloat16, {0, 5, 3, 8});
  args.dq = args.q;
  EXPECT_NO_THROW(gla_backward(args));
}

/// Exactly, wherever in a chunk the resets are, and whatever infinities lie before them.
TEST(GlaBackward, TheGradientAtAResetIsZero) {
  Call call;
  for (const std::int64_t t : {0, 5, 6, 63, 64, 100, 149}) call.g[t * Call::kH] = -kInf;
  call.initial[3] = kInf;
  gla_backward(call.args());
  for (std::int64_t t = 0; t < Call::kT; ++t) {
    if (call.g[t * Call::kH] == -kInf) {
      EXPECT_EQ(call.dg[t * Call::kH], 0) << t;
    }
    EXPECT_TRUE(std::isfinite(call.dg[t * Call::kH])) << t;
  }
  for (std::int64_t i = 0; i < Call::kK * Call::kV; ++i) EXPECT_EQ(call.d_initial[i], 0) << i;
}

/// The gradient of one call is handed to the call before it as d_final_state.
TEST(GlaBackward, StateGradientsCarryASequenceOver) {
  Call whole, parts;
  gla_backward(whole.args());
  constexpr std::int64_t kSplit = 70;
  std::vector<float> middle(parts.initial.size()), o(Call::kT * Call::kH * Call::kV);
  const auto state = [](std::vector<float>& x) {
    return TensorView::contiguous(x.data(), DType::kFloat32, {1, Call::kH, Call::kK, Call::kV});
  };
  const GlaBackwardArgs first = parts.args(0, kSplit);
  gla_forward({.q = first.q,
               .k = first.k,
               .v = first.v,
               .log_decay = first.log_decay,
               .initial_state = first.initial_state,
               .o = TensorView::contiguous(o.data(), DType::kFloat32, first.v.shape),
               .final_state = state(middle)});
  std::vector<float> d_middle(middle.size());
  GlaBackwardArgs last = parts.args(kSplit, Call::kT);
  last.initial_state = state(middle);
  last.d_initial_state = state(d_middle);
  gla_backward(last);
  GlaBackwardArgs before = parts.args(0, kSplit);
  before.d_final_state = state(d_middle);
  gla_backward(before);
  expect_near(parts.dq, whole.dq, 2e-6);
  expect_near(parts.dk, whole.dk, 2e-6);
  expect_near(parts.dv, whole.dv, 2e-6);
  expect_near(parts.dg, whole.dg, 2e-6);
  expect_near(parts.d_initial, whole.d_initial, 2e-6);
}

/// A sequence on three devices: each computes its span's part, and from these each its
/// d_final_state; every gradient is then as in one piece.
TEST(GlaStateBackward, SpansOnTheirOwnGiveTheWholeGradient) {
  Call whole, parts;
  parts.g[40 * Call::kH] = whole.g[40 * Call::kH] = -kInf;  // head 0 of span 0 forgets
  gla_backward(whole.args());
  const std::vector<std::int64_t> cuts = {0, 65, 66, Call::kT};
  const std::int64_t size = Call::kK * Call::kV, ranks = std::ssize(cuts) - 1;
  std::vector<std::vector<float>> d_state(ranks), total(ranks);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const GlaBackwardArgs span = parts.args(cuts[r], cuts[r + 1]);
    d_state[r].resize(Call::kH * size);
    total[r].resize(Call::kH);
    gla_state_backward({.q = span.q,
                        .d_o = span.d_o,
                        .log_decay = span.log_decay,
                        .d_state = TensorView::contiguous(d_state[r].data(), DType::kFloat32,
                                                          {1, Call::kH, Call::kK, Call::kV}),
                        .total_log_decay = TensorView::contiguous(total[r].data(), DType::kFloat32,
                                                                  {1, Call::kH})});
    for (std::int64_t h = 0; h < Call::kH; ++h) {
      double sum = 0;
      for (std::int64_t t = cuts[r]; t < cuts[r + 1]; ++t) sum += parts.g[t * Call::kH + h];
      EXPECT_FLOAT_EQ(total[r][h], static_cast<float>(sum));
    }
  }
  std::vector<float> d_end = parts.d_final;  // by the state at the end of the span
  for (std::int64_t r = ranks - 1; r >= 0; --r) {
    for (std::int64_t i = 0; i < Call::kH * size; ++i) {
      d_end[i] = std::exp(total[r][i / size]) * d_end[i] + d_state[r][i];
    }
    if (r == 1) {  // the gradient that the span 0 is handed
      parts.d_final = d_end;
      gla_backward(parts.args(0, cuts[1]));
      for (std::int64_t t = 0; t < cuts[1] * Call::kH; ++t) {
        EXPECT_NEAR(parts.dg[t], whole.dg[t], 1e-4 * (1 + std::fabs(whole.dg[t]))) << t;
      }
    }
  }
  expect_near(d_end, whole.d_initial, 2e-6);
}

/// Segments of a long sequence, and a state that grows over them.
TEST(GlaBackward, LongSequences) {
  const Case one = parse_cases("gla", R"([{"name": "long", "directions": ["backward"],
      "axes": {"B": 1, "T": 5000, "H": 2, "HQ": 1, "K": 16, "V": 24}, "dtype": ["fp32"],
      "decay": {"kind": "constant", "distribution": "zero"}, "states": "both",
      "tags": ["check"]}])",
                               "test")[0];
  for (const CheckResult& result :
       check_case(find_operation("gla", "backward"), one, DType::kFloat32, {Device::cpu()}, 2)) {
    EXPECT_EQ(result.outcome, Outcome::kPassed) << result.variant << ": " << result.detail;
  }
}

}  // namespace
}  // namespace tandem::tools
