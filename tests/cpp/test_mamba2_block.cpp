// mamba2_block on the CPU: against its definition, in steps, and what it refuses.
// tests/cuda/test_mamba2_block_graph.cpp runs it on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_mamba2_block.h"
#include "reference/mamba2_block.h"
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

const std::vector<Mamba2BlockSizes> kSizes = {
    {},
    {.d = 40, .H = 3, .P = 5, .G = 1, .N = 24, .W = 3, .conv_bias = false},
    {.d = 24, .H = 6, .P = 8, .G = 3, .N = 16, .W = 2}};

TEST(Mamba2Block, IsItsDefinition) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    unsigned seed = 1;
    for (const Mamba2BlockSizes& sizes : kSizes) {
      for (const std::int64_t T : {1, 13, 70}) {
        RandomMamba2Block random(dtype, sizes, ++seed);
        if (seed % 2 == 0) random.block.dt_min = 0.05, random.block.dt_max = 0.4;
        const TensorView x = random.normal({2, T, sizes.d}, 0, 1), out = random.zeros(x.shape);
        const Mamba2States before = random.states(2, 0.5), after = random.states(2, 0);
        mamba2_block_forward({.block = random.block,
                              .x = x,
                              .initial_states = before,
                              .final_states = after,
                              .out = out});
        const auto expected = reference::mamba2_block(random.block, x, before);
        const std::string which = to_string(dtype) + " " + std::to_string(seed);
        EXPECT_LT(difference(values_of(out), expected.out), tolerance(dtype)) << which;
        EXPECT_LT(difference(values_of(after.conv), expected.conv), tolerance(dtype)) << which;
        EXPECT_LT(difference(values_of(after.state), expected.state), tolerance(dtype)) << which;
      }
    }
  }
}

TEST(Mamba2Block, TakesPackedSequences) {
  const std::vector<std::int64_t> begins = {0, 5, 5, 40, 47};
  RandomMamba2Block random(DType::kFloat64, {}, 3);
  const TensorView x = random.normal({1, 47, 48}, 0, 1), out = random.zeros(x.shape);
  const Mamba2States before = random.states(4, 0.5), after = random.states(4, 0);
  mamba2_block_forward({.block = random.block,
                        .x = x,
                        .cu_seqlens = random.cu_seqlens(begins),
                        .initial_states = before,
                        .final_states = after,
                        .out = out});
  const auto expected = reference::mamba2_block(random.block, x, before, begins);
  EXPECT_LT(difference(values_of(out), expected.out), 1e-12);
  EXPECT_LT(difference(values_of(after.conv), expected.conv), 1e-12);
  EXPECT_LT(difference(values_of(after.state), expected.state), 1e-12);
}

/// The loss whose gradient a backward makes, by the definition.
double loss(const Mamba2BlockTraining& call, const std::vector<std::int64_t>& begins) {
  const auto made = reference::mamba2_block(call.forward.block, call.forward.x,
                                            call.forward.initial_states, begins);
  double sum = 0;
  const auto add = [&](const TensorView& gradient, const std::vector<double>& values) {
    const std::vector<double> factors = values_of(gradient);
    for (std::size_t i = 0; i < factors.size(); ++i) sum += factors[i] * values[i];
  };
  add(call.backward.d_out, made.out);
  add(call.backward.d_final_states->conv, made.conv);
  add(call.backward.d_final_states->state, made.state);
  return sum;
}

void expect_derivatives(const Mamba2BlockTraining& call, const std::vector<std::int64_t>& begins) {
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
  mamba2_block_forward(call.forward);
  mamba2_block_backward(call.backward);
  const Mamba2Block& block = call.forward.block;
  for_each_mamba2_parameter([&](const char* name, auto weight, auto gradient) {
    const std::optional<TensorView> parameter = block.*weight;
    if (parameter) expect(name, *parameter, *(call.backward.gradients.*gradient));
  });
  expect("x", call.forward.x, *call.backward.dx);
  const Mamba2States& states = *call.backward.d_initial_states;
  expect("conv", call.forward.initial_states->conv, states.conv);
  expect("state", call.forward.initial_states->state, states.state);
}

TEST(Mamba2Block, GradientsAreTheDerivativesOfTheDefinition) {
  for (const Mamba2BlockSizes& sizes :
       {Mamba2BlockSizes{.d = 6, .H = 2, .P = 3, .G = 1, .N = 4},
        Mamba2BlockSizes{.d = 5, .H = 4, .P = 2, .G = 2, .N = 3, .W = 3, .conv_bias = false}}) {
    RandomMamba2Block random(DType::kFloat64, sizes, 7);
    expect_derivatives(make_training(random, 2, 5), {});
    const std::vector<std::int64_t> begins = {0, 3, 3, 8};
    expect_derivatives(make_training(random, 1, 8, random.cu_seqlens(begins)), begins);
  }
}

TEST(Mamba2Block, GradientsInEveryDtypeAreThoseOfFp64) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Mamba2BlockSizes& sizes : kSizes) {
      RandomMamba2Block random(dtype, sizes, 9);
      random.block.dt_max = 0.4;
      const Mamba2BlockTraining call = make_training(random, 2, 70);
      const Mamba2BlockTraining exact = widened(random, call);
      for (const Mamba2BlockTraining& one : {call, exact}) {
        mamba2_block_forward(one.forward);
        mamba2_block_backward(one.backward);
      }
      for_each_output(
          call, exact, [&](const char* name, const TensorView& got, const TensorView& right) {
            EXPECT_LT(difference(values_of(got), values_of(right)), 3 * tolerance(dtype))
                << to_string(dtype) << " " << name;
          });
    }
  }
}

TEST(Mamba2Block, GradientsMayBeLeftOut) {
  RandomMamba2Block random(DType::kFloat64, {}, 11);
  const Mamba2BlockTraining call = make_training(random, 2, 9);
  mamba2_block_forward(call.forward);
  mamba2_block_backward(call.backward);
  for_each_mamba2_parameter([&](const char* name, auto, auto gradient) {
    Mamba2BlockBackwardArgs alone = call.backward;
    alone.dx.reset();
    alone.d_initial_states.reset();
    alone.gradients = {};
    const TensorView& whole = *(call.backward.gradients.*gradient);
    alone.gradients.*gradient = random.zeros(whole.shape);
    mamba2_block_backward(alone);
    EXPECT_EQ(values_of(*(alone.gradients.*gradient)), values_of(whole)) << name;
  });
}

TEST(Mamba2Block, AStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t kPrompt = 4, kTokens = 9;
  for (const Mamba2BlockSizes& sizes : kSizes) {
    RandomMamba2Block random(DType::kFloat64, sizes, 5);
    const TensorView x = random.normal({2, kTokens, sizes.d}, 0, 1);
    const auto expected = reference::mamba2_block(random.block, x);
    const Mamba2States states = random.states(2, 0);
    const TensorView prompt = tokens_of(random, x, 0, kPrompt), end = random.zeros(prompt.shape);
    mamba2_block_forward({.block = random.block, .x = prompt, .final_states = states, .out = end});
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      const TensorView part = tokens_of(random, x, t, 1), got = random.zeros({2, sizes.d});
      const TensorView token = TensorView::contiguous(part.data, part.dtype, got.shape);
      mamba2_block_step({.block = random.block, .x = token, .states = states, .out = got});
      EXPECT_LT(difference(values_of(got), token_of(expected.out, x.shape, t)), 1e-12) << t;
    }
    EXPECT_LT(difference(values_of(states.conv), expected.conv), 1e-12);
    EXPECT_LT(difference(values_of(states.state), expected.state), 1e-12);
  }
}

TEST(Mamba2Block, TakesNoTokens) {
  RandomMamba2Block random(DType::kFloat32, {}, 12);
  const TensorView x = random.zeros({2, 0, 48}), out = random.zeros(x.shape);
  const Mamba2States before = random.states(2, 0.5), after = random.states(2, 0);
  mamba2_block_forward(
      {.block = random.block, .x = x, .initial_states = before, .final_states = after, .out = out});
  EXPECT_EQ(values_of(after.conv), values_of(before.conv));
  EXPECT_EQ(values_of(after.state), values_of(before.state));
}

TEST(Mamba2Block, RunsInTheMemoryItAsksFor) {
  RandomMamba2Block random(DType::kFloat32, {}, 1);
  const Mamba2BlockTraining call = make_training(random, 1, 7);
  Mamba2BlockForwardArgs unsaved = call.forward;
  unsaved.saved.reset();
  unsaved.out = random.zeros(call.forward.out.shape);
  mamba2_block_forward(unsaved);
  const DeviceProperties cpu = DeviceProperties::cpu();
  const auto run_in = [&](std::size_t bytes, const auto& work) {
    char* const memory = random.aligned(bytes + 1);
    memory[bytes] = 7;
    work(Context{.workspace = {memory, bytes}});
    EXPECT_EQ(memory[bytes], 7);
  };
  const std::size_t bytes = mamba2_block_forward_workspace_bytes(call.forward, cpu);
  EXPECT_LT(bytes, mamba2_block_forward_workspace_bytes(unsaved, cpu));
  run_in(bytes, [&](const Context& context) { mamba2_block_forward(call.forward, context); });
  EXPECT_EQ(values_of(call.forward.out), values_of(unsaved.out)) << "saved or not, the same bits";
  run_in(mamba2_block_backward_workspace_bytes(call.backward, cpu),
         [&](const Context& context) { mamba2_block_backward(call.backward, context); });
}

TEST(Mamba2Block, RefusesWhatItCannotRunAndWritesNothing) {
  using Args = Mamba2BlockForwardArgs;
  const std::vector<std::pair<std::function<void(Args&)>, std::string>> spoilt = {
      {[](Args& args) { args.block.heads = 5; },
       "[mamba2_block_forward] heads must be positive and divide norm's 64, got 5"},
      {[](Args& args) { args.block.groups = 3; },
       "[mamba2_block_forward] groups must be positive and divide heads = 4, got 3"},
      {[](Args& args) { args.block.conv1d_weight.shape[0] = 95; },
       "[mamba2_block_forward] conv1d_weight must have rows for H*P = 64 channels and two of each "
       "of 2 groups' states, got 95"},
      {[](Args& args) { args.block.in_proj.shape[0] = 163; },
       "[mamba2_block_forward] in_proj must have shape [H*P+E+H,d] = [164,48], got [163,48]"},
      {[](Args& args) { args.block.D.shape[0] = 3; },
       "[mamba2_block_forward] D must have shape [H] = [4], got [3]"},
      {[](Args& args) { args.block.A_log.dtype = DType::kFloat16; },
       "[mamba2_block_forward] A_log must have dtype fp32, got fp16"},
      {[](Args& args) { args.block.dt_min = 2, args.block.dt_max = 1; },
       "[projection_forward] min2 must not be more than max"},
      {[](Args& args) { args.block.eps = -1; },
       "[mamba2_block_forward] eps must be finite and not negative, got -1"},
      {[](Args& args) { args.final_states->conv.shape[2] = 2; },
       "[causal_conv1d_forward] final_state must have shape"},
      {[](Args& args) { args.final_states->state.shape[1] = 3; },
       "[gla_forward] final_state must have shape"},
      {[](Args& args) { args.out = args.x; },
       "[mamba2_block_forward] out must not overlap x, got views that share memory"},
      {[](Args& args) { args.final_states->conv = args.initial_states->conv; },
       "[mamba2_block_forward] final_states.conv must not overlap initial_states.conv"},
      {[](Args& args) { args.block.out_proj.shape[1] = 63; }, "[gated_output_forward] weight"}};
  for (const auto& [spoil, text] : spoilt) {
    RandomMamba2Block random(DType::kFloat32, {}, 1);
    const TensorView x = random.normal({1, 7, 48}, 0, 1), out = random.zeros(x.shape);
    const Mamba2States after = random.states(1, 0);
    Args args = {.block = random.block,
                 .x = x,
                 .initial_states = random.states(1, 0.5),
                 .final_states = after,
                 .out = out};
    spoil(args);
    try {
      mamba2_block_forward(args);
      ADD_FAILURE() << "was not refused: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(text));
    }
    EXPECT_THAT(values_of(out), testing::Each(0.0)) << text;
    EXPECT_THAT(values_of(after.conv), testing::Each(0.0)) << text;
    EXPECT_THAT(values_of(after.state), testing::Each(0.0)) << text;
  }
  RandomMamba2Block random(DType::kFloat32, {}, 2);
  Mamba2BlockBackwardArgs backward = make_training(random, 1, 7).backward;
  backward.gradients.in_proj->shape[0] -= 1;
  try {
    mamba2_block_backward(backward);
    ADD_FAILURE() << "was not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("[mamba2_block_backward] gradients.in_proj must "
                                                  "have shape in_proj's = [164,48], got [163,48]"));
  }
  EXPECT_THAT(values_of(*backward.dx), testing::Each(0.0));
  const TensorView x = random.normal({3, 48}, 0, 1), out = random.zeros(x.shape);
  Mamba2BlockStepArgs step = {
      .block = random.block, .x = x, .states = random.states(2, 0), .out = out};
  try {
    mamba2_block_step(step);
    ADD_FAILURE() << "was not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("[causal_conv1d_step] state must have shape"));
  }
  EXPECT_THAT(values_of(out), testing::Each(0.0));
}

}  // namespace
}  // namespace tandem::tools
