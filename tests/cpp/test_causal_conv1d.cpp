// causal_conv1d where its cases do not reach (test_every_case.cpp): widths that are refused, no
// tokens, parts of the gradients, a sequence in two calls and in steps, equal bits.
#include <gtest/gtest.h>
#include <omp.h>

#include <vector>

#include "cli/cases/random.h"
#include "tandem/error.h"
#include "tandem/ops/causal_conv1d.h"

namespace tandem::tools {
namespace {

constexpr std::int64_t kW = 4;

/// One sequence, random inputs, and room for every output and gradient.
struct Call {
  explicit Call(std::int64_t T = 150, std::int64_t D = 40) : T(T), D(D) {
    const auto fill = [](std::vector<float>& x, std::int64_t count, const char* name) {
      const RandomStream random(4, name);
      x.resize(count);
      for (std::int64_t i = 0; i < count; ++i) x[i] = random.normal(i);
    };
    fill(x, T * D, "x");
    fill(weight, D * kW, "weight");
    fill(bias, D, "bias");
    fill(d_out, T * D, "d_out");
    fill(initial, D * (kW - 1), "initial");
    fill(d_final, D * (kW - 1), "d_final");
    out = dx = std::vector<float>(T * D, -7);
    final = d_initial = std::vector<float>(D * (kW - 1), -7);
    d_weight.assign(D * kW, -7);
    d_bias.assign(D, -7);
  }

  static TensorView view(std::vector<float>& values, const Dims& shape, std::int64_t first = 0) {
    return TensorView::contiguous(values.data() + first, DType::kFloat32, shape);
  }
  TensorView tokens(std::vector<float>& values, std::int64_t begin, std::int64_t end) const {
    return view(values, {1, end - begin, D}, begin * D);
  }
  TensorView state(std::vector<float>& values) const { return view(values, {1, D, kW - 1}); }

  /// Tokens [begin,end).
  CausalConv1dForwardArgs forward(std::int64_t begin, std::int64_t end) {
    return {.x = tokens(x, begin, end),
            .weight = view(weight, {D, kW}),
            .bias = view(bias, {D}),
            .silu = true,
            .initial_state = state(initial),
            .out = tokens(out, begin, end),
            .final_state = state(final)};
  }
  CausalConv1dForwardArgs forward() { return forward(0, T); }

  CausalConv1dBackwardArgs backward(std::int64_t begin, std::int64_t end) {
    return {.x = tokens(x, begin, end),
            .weight = view(weight, {D, kW}),
            .bias = view(bias, {D}),
            .silu = true,
            .initial_state = state(initial),
            .d_out = tokens(d_out, begin, end),
            .d_final_state = state(d_final),
            .dx = tokens(dx, begin, end),
            .d_weight = view(d_weight, {D, kW}),
            .d_bias = view(d_bias, {D}),
            .d_initial_state = state(d_initial)};
  }
  CausalConv1dBackwardArgs backward() { return backward(0, T); }

  std::int64_t T, D;
  std::vector<float> x, weight, bias, d_out, initial, d_final;
  std::vector<float> out, final, dx, d_weight, d_bias, d_initial;
};

template <class Run>
std::string refusal_text(const Run& run) {
  try {
    run();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(CausalConv1d, WidthsFromTwoToFour) {
  for (const std::int64_t W : {1, 5}) {
    Call call;
    CausalConv1dForwardArgs args = call.forward();
    args.weight = Call::view(call.weight, {call.D / 5, W});
    EXPECT_EQ(refusal_text([&] { causal_conv1d_forward(args); }),
              "[causal_conv1d_forward] weight must have W in [2,4], got shape [8," +
                  std::to_string(W) + "]");
  }
  Call call;
  CausalConv1dForwardArgs args = call.forward();
  args.weight = Call::view(call.weight, {call.D, 1, kW});
  EXPECT_EQ(refusal_text([&] { causal_conv1d_forward(args); }),
            "[causal_conv1d_forward] weight must have shape [D,W], got [40,1,4]");
  args = call.forward();
  args.final_state = Call::view(call.final, {1, call.D / 2, 6});
  EXPECT_EQ(refusal_text([&] { causal_conv1d_forward(args); }),
            "[causal_conv1d_forward] final_state must have shape [B,D,W-1] = [1,40,3], got "
            "[1,20,6]");
}

TEST(CausalConv1d, NoTokensLeaveTheStatesAsTheyWere) {
  Call call;
  causal_conv1d_forward(call.forward(0, 0));
  EXPECT_EQ(call.final, call.initial);
  causal_conv1d_backward(call.backward(0, 0));
  EXPECT_EQ(call.d_initial, call.d_final);
  EXPECT_EQ(call.d_weight, std::vector<float>(call.D * kW, 0));
  EXPECT_EQ(call.d_bias, std::vector<float>(call.D, 0));
}

/// A sequence that ends in the middle of another call continues from its state, to the bit, also
/// where a part is shorter than a state; the gradient by that state goes on in the call before.
TEST(CausalConv1d, StatesCarryASequenceOver) {
  for (const std::int64_t split : {1, 2, 3, 70, 148}) {
    Call whole, parts;
    causal_conv1d_forward(whole.forward());
    causal_conv1d_backward(whole.backward());

    std::vector<float> middle(parts.initial.size()), d_middle(parts.initial.size());
    CausalConv1dForwardArgs first = parts.forward(0, split), second = parts.forward(split, parts.T);
    first.final_state = second.initial_state = parts.state(middle);
    causal_conv1d_forward(first);
    causal_conv1d_forward(second);
    EXPECT_EQ(parts.out, whole.out) << split;
    EXPECT_EQ(parts.final, whole.final) << split;

    CausalConv1dBackwardArgs last = parts.backward(split, parts.T),
                             before = parts.backward(0, split);
    last.initial_state = parts.state(middle);
    last.d_initial_state = before.d_final_state = parts.state(d_middle);
    causal_conv1d_backward(last);
    causal_conv1d_backward(before);
    for (std::size_t i = 0; i < whole.dx.size(); ++i) {
      ASSERT_NEAR(parts.dx[i], whole.dx[i], 1e-5) << split << ' ' << i;
    }
    for (std::size_t i = 0; i < whole.d_initial.size(); ++i) {
      ASSERT_NEAR(parts.d_initial[i], whole.d_initial[i], 1e-5) << split << ' ' << i;
    }
  }
}

TEST(CausalConv1d, StepsGiveTheBitsOfAWholeSequence) {
  Call whole(20), steps(20);
  causal_conv1d_forward(whole.forward());
  for (std::int64_t t = 0; t < steps.T; ++t) {
    causal_conv1d_step({.x = Call::view(steps.x, {1, steps.D}, t * steps.D),
                        .weight = Call::view(steps.weight, {steps.D, kW}),
                        .bias = Call::view(steps.bias, {steps.D}),
                        .silu = true,
                        .state = steps.state(steps.initial),
                        .out = Call::view(steps.out, {1, steps.D}, t * steps.D)});
  }
  EXPECT_EQ(steps.out, whole.out);
  EXPECT_EQ(steps.initial, whole.final);
}

/// Each gradient alone has the bits that it has beside the others.
TEST(CausalConv1d, OnlyWhatIsAskedForIsWritten) {
  Call all;
  causal_conv1d_backward(all.backward());
  for (int wanted = 0; wanted < 4; ++wanted) {
    Call one;
    CausalConv1dBackwardArgs args = one.backward();
    if (wanted != 0) args.dx.reset();
    if (wanted != 1) args.d_weight.reset();
    if (wanted != 2) args.d_bias.reset();
    if (wanted != 3) args.d_initial_state.reset();
    causal_conv1d_backward(args);
    const auto expect = [&](bool is_wanted, const std::vector<float>& got,
                            const std::vector<float>& right) {
      EXPECT_EQ(got, is_wanted ? right : std::vector<float>(right.size(), -7)) << wanted;
    };
    expect(wanted == 0, one.dx, all.dx);
    expect(wanted == 1, one.d_weight, all.d_weight);
    expect(wanted == 2, one.d_bias, all.d_bias);
    expect(wanted == 3, one.d_initial, all.d_initial);
  }
}

TEST(CausalConv1d, ThreadsDoNotChangeTheBits) {
  const int threads = omp_get_max_threads();
  Call one(1000, 300);
  omp_set_num_threads(1);
  causal_conv1d_forward(one.forward());
  causal_conv1d_backward(one.backward());
  for (const int count : {2, 3, 7}) {
    Call other(1000, 300);
    omp_set_num_threads(count);
    causal_conv1d_forward(other.forward());
    causal_conv1d_backward(other.backward());
    EXPECT_EQ(other.out, one.out) << count;
    EXPECT_EQ(other.final, one.final) << count;
    EXPECT_EQ(other.dx, one.dx) << count;
    EXPECT_EQ(other.d_weight, one.d_weight) << count;
    EXPECT_EQ(other.d_bias, one.d_bias) << count;
    EXPECT_EQ(other.d_initial, one.d_initial) << count;
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace tandem::tools
