// gla_block on the CPU: against its definition and the derivatives of that, in steps, and what it
// refuses. tests/cuda/test_gla_block_graph.cpp runs it on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_gla_block.h"
#include "reference/gla_block.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-12;
    case DType::kFloat32: return 2e-6;
    case DType::kFloat16: return 1e-3;
    default: return 8e-3;
  }
}

const std::vector<GlaBlockSizes> kSizes = {
    {},
    {.d = 40, .H = 3, .K = 8, .V = 16, .feature_map = Activation::kSilu},
    {.d = 24, .H = 1, .K = 24, .V = 8, .feature_map = Activation::kSigmoid}};

TEST(GlaBlock, IsItsDefinition) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    unsigned seed = 1;
    for (const GlaBlockSizes& sizes : kSizes) {
      for (const std::int64_t T : {1, 13, 70}) {
        RandomGlaBlock random(dtype, sizes, ++seed);
        const TensorView x = random.normal({2, T, sizes.d}, 0, 1), out = random.zeros(x.shape);
        const TensorView before = random.states(2, 0.5), after = random.states(2, 0);
        gla_block_forward({.block = random.block,
                           .x = x,
                           .initial_state = before,
                           .final_state = after,
                           .out = out});
        const auto expected = reference::gla_block(random.block, x, before);
        const std::string which = to_string(dtype) + " " + std::to_string(seed);
        EXPECT_LT(difference(values_of(out), expected.out), tolerance(dtype)) << which;
        EXPECT_LT(difference(values_of(after), expected.final_state), tolerance(dtype)) << which;
      }
    }
  }
}

TEST(GlaBlock, TakesPackedSequences) {
  const std::vector<std::int64_t> begins = {0, 5, 5, 40, 47};
  RandomGlaBlock random(DType::kFloat64, {}, 3);
  const GlaBlockTraining call =
      make_training(random, 1, begins.back(), true, random.cu_seqlens(begins));
  gla_block_forward(call.forward);
  const auto expected =
      reference::gla_block(random.block, call.forward.x, call.forward.initial_state, begins);
  EXPECT_LT(difference(values_of(call.forward.out), expected.out), 1e-12);
  EXPECT_LT(difference(values_of(*call.forward.final_state), expected.final_state), 1e-12);
}

TEST(GlaBlock, AStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t kPrompt = 4, kTokens = 9;
  const auto token = [](RandomTensors& memory, const TensorView& x, std::int64_t t) {
    const TensorView one = tokens_of(memory, x, t, 1);
    return TensorView::contiguous(one.data, one.dtype, {x.shape[0], x.shape[2]});
  };
  for (const GlaBlockSizes& sizes : kSizes) {
    RandomGlaBlock random(DType::kFloat64, sizes, 5);
    const TensorView x = random.normal({2, kTokens, sizes.d}, 0, 1), out = random.zeros(x.shape);
    const TensorView after = random.states(2, 0), state = random.states(2, 0);
    gla_block_forward({.block = random.block, .x = x, .final_state = after, .out = out});
    const TensorView prompt = tokens_of(random, x, 0, kPrompt), end = random.zeros(prompt.shape);
    gla_block_forward({.block = random.block, .x = prompt, .final_state = state, .out = end});
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      const TensorView one = token(random, x, t), got = random.zeros(one.shape);
      gla_block_step({.block = random.block, .x = one, .state = state, .out = got});
      EXPECT_LT(difference(values_of(got), values_of(token(random, out, t))), 1e-12) << t;
    }
    EXPECT_LT(difference(values_of(state), values_of(after)), 1e-12);
  }
}

/// The loss whose gradient a backward makes, by the definition.
double loss(const GlaBlockTraining& call, const std::vector<std::int64_t>& begins) {
  const GlaBlockForwardArgs& forward = call.forward;
  const auto made = reference::gla_block(forward.block, forward.x, forward.initial_state, begins);
  const std::vector<double> d_out = values_of(call.backward.d_out);
  const std::vector<double> d_state = values_of(*call.backward.d_final_state);
  double sum = 0;
  for (std::size_t i = 0; i < d_out.size(); ++i) sum += d_out[i] * made.out[i];
  for (std::size_t i = 0; i < d_state.size(); ++i) sum += d_state[i] * made.final_state[i];
  return sum;
}

void expect_derivatives(const GlaBlockTraining& call, const std::vector<std::int64_t>& begins) {
  const auto expect = [&](const char* name, const TensorView& of, const TensorView& gradient) {
    constexpr double kStep = 1e-5;
    auto* values = static_cast<double*>(of.data);
    std::vector<double> expected;
    for (std::int64_t i = 0; i < of.shape.product(); ++i) {
      const double value = values[i];
      values[i] = value + kStep;
      const double above = loss(call, begins);
      values[i] = value - kStep;
      const double below = loss(call, begins);
      values[i] = value;
      expected.push_back((above - below) / (2 * kStep));
    }
    EXPECT_LT(difference(values_of(gradient), expected), 1e-8) << name;
  };
  gla_block_forward(call.forward);
  gla_block_backward(call.backward);
  for_each_parameter([&](const char* name, auto weight, auto gradient) {
    expect(name, call.forward.block.*weight, *(call.backward.gradients.*gradient));
  });
  expect("x", call.forward.x, *call.backward.dx);
  expect("initial_state", *call.forward.initial_state, *call.backward.d_initial_state);
}

TEST(GlaBlock, GradientsAreTheDerivativesOfTheDefinition) {
  const GlaBlockSizes sizes = {.d = 6, .H = 2, .K = 3, .V = 4};
  for (const Activation f : {Activation::kNone, Activation::kSilu, Activation::kSigmoid}) {
    GlaBlockSizes mapped = sizes;
    mapped.feature_map = f;
    RandomGlaBlock random(DType::kFloat64, mapped, 7);
    expect_derivatives(make_training(random, 2, 5, true), {});
  }
  const std::vector<std::int64_t> begins = {0, 3, 3, 8};
  RandomGlaBlock random(DType::kFloat64, sizes, 8);
  expect_derivatives(make_training(random, 1, 8, true, random.cu_seqlens(begins)), begins);
}

TEST(GlaBlock, GradientsInEveryDtypeAreThoseOfFp64) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const GlaBlockSizes& sizes : kSizes) {
      RandomGlaBlock random(dtype, sizes, 9);
      const GlaBlockTraining call = make_training(random, 2, 70, true);
      const GlaBlockTraining exact = widened(random, call);
      for (const GlaBlockTraining& one : {call, exact}) {
        gla_block_forward(one.forward);
        gla_block_backward(one.backward);
      }
      const auto expect = [&](const char* name, const TensorView& got, const TensorView& right) {
        EXPECT_LT(difference(values_of(got), values_of(right)), 3 * tolerance(dtype))
            << to_string(dtype) << " " << name;
      };
      for_each_parameter([&](const char* name, auto, auto gradient) {
        expect(name, *(call.backward.gradients.*gradient), *(exact.backward.gradients.*gradient));
      });
      expect("x", *call.backward.dx, *exact.backward.dx);
      expect("initial_state", *call.backward.d_initial_state, *exact.backward.d_initial_state);
    }
  }
}

TEST(GlaBlock, GradientsAreAddedUpOrLeftOut) {
  RandomGlaBlock random(DType::kFloat64, {}, 11);
  const GlaBlockTraining call = make_training(random, 2, 9, false);
  gla_block_forward(call.forward);
  gla_block_backward(call.backward);
  const std::vector<double> dx = values_of(*call.backward.dx);
  std::vector<std::vector<double>> once;
  for_each_parameter([&](const char*, auto, auto gradient) {
    once.push_back(values_of(*(call.backward.gradients.*gradient)));
    for (double& value : once.back()) value *= 2;
  });
  GlaBlockBackwardArgs again = call.backward;
  again.accumulate = true;
  gla_block_backward(again);
  auto twice = once.begin();
  for_each_parameter([&](const char* name, auto, auto gradient) {
    EXPECT_LT(difference(values_of(*(again.gradients.*gradient)), *twice++), 1e-12) << name;
  });
  EXPECT_EQ(values_of(*again.dx), dx);
  // One at a time, with the same bits.
  for_each_parameter([&](const char* name, auto weight, auto gradient) {
    GlaBlockBackwardArgs alone = call.backward;
    alone.dx.reset();
    alone.gradients = {};
    alone.gradients.*gradient = random.zeros((random.block.*weight).shape);
    gla_block_backward(alone);
    std::vector<double> got = values_of(*(alone.gradients.*gradient));
    for (double& value : got) value *= 2;
    EXPECT_EQ(got, once[twice - once.begin() - 9]) << name;
    ++twice;
  });
}

TEST(GlaBlock, TakesNoTokens) {
  RandomGlaBlock random(DType::kFloat32, {}, 12);
  const GlaBlockTraining call = make_training(random, 2, 0, true);
  gla_block_forward(call.forward);
  EXPECT_EQ(values_of(*call.forward.final_state), values_of(*call.forward.initial_state));
  GlaBlockBackwardArgs backward = call.backward;
  backward.gradients.q_proj = random.normal(random.block.q_proj.shape, 0, 1);
  gla_block_backward(backward);
  EXPECT_EQ(values_of(*backward.d_initial_state), values_of(*backward.d_final_state));
  for_each_parameter([&](const char* name, auto, auto gradient) {
    EXPECT_THAT(values_of(*(backward.gradients.*gradient)), testing::Each(0.0)) << name;
  });
}

TEST(GlaBlock, RunsInTheMemoryItAsksFor) {
  RandomGlaBlock random(DType::kFloat32, {.feature_map = Activation::kSilu}, 13);
  const GlaBlockTraining call = make_training(random, 1, 7, true);
  GlaBlockForwardArgs unsaved = call.forward;
  unsaved.saved.reset();
  unsaved.out = random.zeros(call.forward.out.shape);
  gla_block_forward(unsaved);
  const auto expected = values_of(unsaved.out);
  // Runs `work` in just enough memory; what is behind it must stay.
  const auto run_in = [&](std::size_t bytes, const std::string& name, const auto& work) {
    char* memory = random.aligned(bytes + 1);
    memory[bytes] = 7;
    work(Context{.workspace = {memory, bytes}});
    EXPECT_EQ(memory[bytes], 7) << name;
    try {
      work(Context{.workspace = {memory, bytes - 1}});
      FAIL() << "was not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), "[" + name + "] workspace must have at least " +
                                  std::to_string(bytes) + " bytes, got " +
                                  std::to_string(bytes - 1));
    }
  };
  const DeviceProperties cpu = DeviceProperties::cpu();
  const std::size_t bytes = gla_block_forward_workspace_bytes(call.forward, cpu);
  EXPECT_LT(bytes, gla_block_forward_workspace_bytes(unsaved, cpu));
  run_in(bytes, "gla_block_forward",
         [&](const Context& context) { gla_block_forward(call.forward, context); });
  EXPECT_EQ(values_of(call.forward.out), expected) << "saved or not, the same bits";
  run_in(gla_block_backward_workspace_bytes(call.backward, cpu), "gla_block_backward",
         [&](const Context& context) { gla_block_backward(call.backward, context); });
  const TensorView x = random.normal({3, 48}, 0, 1), out = random.zeros(x.shape);
  const GlaBlockStepArgs step = {
      .block = random.block, .x = x, .state = random.states(3, 1), .out = out};
  run_in(gla_block_step_workspace_bytes(step, cpu), "gla_block_step",
         [&](const Context& context) { gla_block_step(step, context); });
}

template <class Args>
using Spoilt = std::vector<std::pair<std::function<void(Args&)>, std::string>>;

template <class Args>
void expect_refusals(const Spoilt<Args>& spoilt, const std::function<Args()>& make,
                     void (*run)(const Args&, const Context&)) {
  for (const auto& [spoil, text] : spoilt) {
    Args args = make();
    spoil(args);
    try {
      run(args, {});
      ADD_FAILURE() << "was not refused: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(text));
    }
  }
}

TEST(GlaBlock, RefusesWhatItCannotRunAndWritesNothing) {
  RandomGlaBlock random(DType::kFloat32, {}, 14);
  const GlaBlockTraining call = make_training(random, 1, 7, true);
  using Args = GlaBlockForwardArgs;
  const Spoilt<Args> spoilt = {
      {[](Args& args) { args.block.heads = 5; },
       "[gla_block_forward] heads must divide q_proj's 32 rows, got 5"},
      {[](Args& args) { args.block.heads = 0; },
       "[gla_block_forward] heads must be positive, got 0"},
      {[](Args& args) { args.block.attn_norm.shape[0] = 47; },
       "[gla_block_forward] attn_norm must have shape [d] = [48], got [47]"},
      {[](Args& args) { args.block.attn_norm.dtype = DType::kBFloat16; },
       "[gla_block_forward] attn_norm must have dtype fp32, got bf16"},
      {[](Args& args) { args.block.eps = -1; },
       "[gla_block_forward] eps must be finite and not negative, got -1"},
      {[](Args& args) { args.block.feature_map = Activation::kSoftplus; },
       "[gla_block_forward] feature_map must be 0 (none), 1 (silu) or 2 (sigmoid), got 4"},
      {[](Args& args) { args.block.gate_logit_normalizer = 0; },
       "[projection_forward] divisor4 must be positive"},
      {[](Args& args) { args.block.head_eps = -1; }, "[gated_output_forward] group_eps"},
      {[](Args& args) { args.block.o_proj.shape[1] = 47; }, "[gated_output_forward] weight"},
      {[](Args& args) { args.final_state->shape[1] = 1; }, "[gla_forward] final_state"},
      {[](Args& args) { args.out.shape[1] = 6; },
       "[gla_block_forward] out must have shape x's = [1,7,48], got [1,6,48]"},
      {[](Args& args) { args.out = args.x; },
       "[gla_block_forward] out must not overlap x, got views that share memory"},
      {[](Args& args) { args.out.data = args.saved->data; },
       "[gla_block_forward] saved must not overlap out, got views that share memory"},
      {[](Args& args) { args.saved->bytes -= 1; }, "[gla_block_forward] saved must have at least "},
      {[](Args& args) { args.saved->data = static_cast<char*>(args.saved->data) + 4; },
       "[gla_block_forward] saved must be aligned to 256 bytes"}};
  expect_refusals<Args>(
      spoilt, [&] { return call.forward; }, gla_block_forward);
  EXPECT_THAT(values_of(call.forward.out), testing::Each(0.0));
  EXPECT_THAT(values_of(*call.forward.final_state), testing::Each(0.0));
}

TEST(GlaBlock, RefusesABackwardThatItCannotRunAndWritesNothing) {
  RandomGlaBlock random(DType::kFloat32, {}, 15);
  const GlaBlockTraining call = make_training(random, 1, 7, true);
  gla_block_forward(call.forward);
  using Args = GlaBlockBackwardArgs;
  const Spoilt<Args> spoilt = {
      {[](Args& args) { args.saved = {}; }, "[gla_block_backward] saved must have at least "},
      {[](Args& args) { args.d_out.shape[1] = 6; },
       "[gla_block_backward] d_out must have shape x's = [1,7,48], got [1,6,48]"},
      {[](Args& args) { args.dx->dtype = DType::kFloat16; },
       "[gla_block_backward] dx must have dtype fp32, got fp16"},
      {[](Args& args) { args.dx = args.d_out; },
       "[gla_block_backward] dx must not overlap d_out, got views that share memory"},
      {[](Args& args) { args.gradients.q_proj = args.gradients.k_proj; },
       "[gla_block_backward] gradients.k_proj must not overlap gradients.q_proj"},
      {[](Args& args) { args.gradients.o_proj = args.block.o_proj; },
       "[gla_block_backward] gradients.o_proj must not overlap o_proj"},
      {[](Args& args) { args.gradients.attn_norm->shape[0] = 3; },
       "[gla_block_backward] gradients.attn_norm must have shape [d] = [48], got [3]"},
      {[](Args& args) { args.gradients.gk_bias->shape[0] = 1; },
       "[projection_backward] d_bias4 must have shape"},
      {[](Args& args) { args.d_final_state->shape[1] = 1; }, "[gla_backward] d_final_state"}};
  expect_refusals<Args>(
      spoilt, [&] { return call.backward; }, gla_block_backward);
  EXPECT_THAT(values_of(*call.backward.dx), testing::Each(0.0));
  for_each_parameter([&](const char* name, auto, auto gradient) {
    EXPECT_THAT(values_of(*(call.backward.gradients.*gradient)), testing::Each(0.0)) << name;
  });
}

TEST(GlaBlock, RefusesAStepThatItCannotRunAndWritesNothing) {
  RandomGlaBlock random(DType::kFloat32, {}, 16);
  const TensorView x = random.normal({3, 48}, 0, 1), out = random.zeros(x.shape);
  using Args = GlaBlockStepArgs;
  const Spoilt<Args> spoilt = {
      {[](Args& args) {
         args.x.shape = {3, 1, 48};
       },
       "[gla_block_step] x must have shape [B,d], got [3,1,48]"},
      {[](Args& args) { args.state.shape[3] = 23; }, "[gla_step] state must have shape"},
      {[](Args& args) { args.out.data = args.state.data; },
       "[gla_block_step] state must not overlap out, got views that share memory"}};
  const auto make = [&] {
    return Args{.block = random.block, .x = x, .state = random.states(3, 0), .out = out};
  };
  expect_refusals<Args>(spoilt, make, gla_block_step);
  EXPECT_THAT(values_of(out), testing::Each(0.0));
}

}  // namespace
}  // namespace tandem::tools
