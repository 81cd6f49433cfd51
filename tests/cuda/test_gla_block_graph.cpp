// gla_block on a GPU: forward against its fp64 definition, backward against the CPU's in fp64, both
// replayed with the same bits, and its step as a captured graph that is replayed token by token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "block_outputs.h"
#include "cpp/random_gla_block.h"
#include "on_gpu.h"
#include "reference/gla_block.h"

namespace tandem::tools {
namespace {

GlaBlock on_gpu(OnGpu& gpu, const GlaBlock& host) {
  GlaBlock block = host;
  for_each_parameter([&](const char*, auto weight, auto) { block.*weight = gpu(host.*weight); });
  return block;
}

GlaBlockTraining on_gpu(OnGpu& gpu, const GlaBlockTraining& host) {
  GlaBlockTraining made = host;
  GlaBlockForwardArgs& forward = made.forward;
  GlaBlockBackwardArgs& backward = made.backward;
  forward.block = backward.block = on_gpu(gpu, host.forward.block);
  forward.x = backward.x = gpu(host.forward.x);
  forward.cu_seqlens = backward.cu_seqlens = gpu(host.forward.cu_seqlens);
  forward.initial_state = backward.initial_state = gpu(host.forward.initial_state);
  forward.final_state = gpu(host.forward.final_state);
  forward.out = gpu(host.forward.out);
  const std::size_t bytes = host.forward.saved->bytes;
  backward.saved = {gpu.memory(bytes), bytes};
  forward.saved = backward.saved;
  backward.d_out = gpu(host.backward.d_out);
  backward.d_final_state = gpu(host.backward.d_final_state);
  backward.dx = gpu(host.backward.dx);
  backward.d_initial_state = gpu(host.backward.d_initial_state);
  for_each_parameter([&](const char*, auto, auto gradient) {
    backward.gradients.*gradient = gpu(host.backward.gradients.*gradient);
  });
  return made;
}

class GpuGlaBlock : public OnHopper {};

const std::vector<GlaBlockSizes> kSizes = {
    {.d = 256, .H = 4, .K = 64, .V = 64},
    {.d = 384, .H = 3, .K = 128, .V = 128, .feature_map = Activation::kSilu},
    {.d = 264, .H = 2, .K = 64, .V = 128, .feature_map = Activation::kSigmoid}};

struct Shape {
  std::int64_t B, T;
  std::vector<std::int64_t> begins = {};  // of packed sequences
};

/// Expects a forward and a backward to be right, and replayed to have the same bits.
void expect_training(DType dtype, const GlaBlockSizes& sizes, const Shape& shape, unsigned seed) {
  const std::string which = to_string(dtype) + " d" + std::to_string(sizes.d) + " T" +
                            std::to_string(shape.T) + (shape.begins.empty() ? "" : " packed");
  RandomGlaBlock random(dtype, sizes, seed);
  const GlaBlockTraining host =
      make_training(random, shape.B, shape.T, true, random.cu_seqlens(shape.begins));
  const GlaBlockTraining exact = widened(random, host);
  gla_block_forward(exact.forward);
  gla_block_backward(exact.backward);
  const auto expected = reference::gla_block(host.forward.block, host.forward.x,
                                             host.forward.initial_state, shape.begins);
  EXPECT_LT(difference(values_of(exact.forward.out), expected.out), 1e-12) << which;

  OnGpu gpu;
  const GlaBlockTraining there = on_gpu(gpu, host);
  const DeviceProperties& device = device_properties(Device::cuda());
  const Workspace workspace =
      gpu.workspace(std::max(gla_block_forward_workspace_bytes(there.forward, device),
                             gla_block_backward_workspace_bytes(there.backward, device)));
  const SideStream stream;
  const CapturedCall training(stream, [&] {
    const Context context = {.stream = {stream.handle}, .workspace = workspace};
    gla_block_forward(there.forward, context);
    gla_block_backward(there.backward, context);
  });
  // Of the decay's parameters, sums over tokens whose terms mostly cancel, more (ops/gla.h).
  const auto tolerance = [&](const std::string& name) {
    return (dtype == DType::kFloat16 ? 3e-3 : 2.4e-2) * (name.starts_with("gk_") ? 4 : 1);
  };
  expect_outputs(which, training, host, there, exact, tolerance);
}

TEST_F(GpuGlaBlock, ForwardAndBackwardAreThoseOfFp64) {
  unsigned seed = 10;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const GlaBlockSizes& sizes : kSizes) {
      expect_training(dtype, sizes, {2, 200}, ++seed);
      expect_training(dtype, sizes, {3, 1}, ++seed);
      expect_training(dtype, sizes, {1, 300, {0, 70, 70, 71, 300}}, ++seed);
    }
  }
}

TEST_F(GpuGlaBlock, TakesNoTokens) {
  RandomGlaBlock random(DType::kBFloat16, kSizes[0], 30);
  const GlaBlockTraining host = make_training(random, 2, 0, true);
  for_each_parameter([&](const char*, auto, auto gradient) {
    set_value(*(host.backward.gradients.*gradient), 0, 1);
  });
  OnGpu gpu;
  const GlaBlockTraining there = on_gpu(gpu, host);
  gla_block_forward(there.forward);
  gla_block_backward(there.backward);
  for_each_output(host, there, [](const char*, const TensorView& to, const TensorView& from) {
    copy(to, from);
  });
  EXPECT_EQ(values_of(*host.forward.final_state), values_of(*host.forward.initial_state));
  EXPECT_EQ(values_of(*host.backward.d_initial_state), values_of(*host.backward.d_final_state));
  for_each_parameter([&](const char* name, auto weight, auto gradient) {
    EXPECT_EQ(values_of(*(host.backward.gradients.*gradient)),
              std::vector<double>((host.forward.block.*weight).shape.product(), 0.0))
        << name;
  });
}

TEST_F(GpuGlaBlock, LaunchesWhatTheDocumentLists) {
  RandomGlaBlock random(DType::kBFloat16, {.d = 256, .H = 4, .K = 64, .V = 64}, 31);
  const GlaBlockTraining host = make_training(random, 2, 256, false);
  OnGpu gpu;
  const GlaBlockTraining there = on_gpu(gpu, host);
  const DeviceProperties& device = device_properties(Device::cuda());
  const Workspace workspace =
      gpu.workspace(std::max(gla_block_forward_workspace_bytes(there.forward, device),
                             gla_block_backward_workspace_bytes(there.backward, device)));
  const SideStream stream;
  const Context context = {.stream = {stream.handle}, .workspace = workspace};
  const CapturedCall forward(stream, [&] { gla_block_forward(there.forward, context); });
  EXPECT_THAT(forward.launches(), testing::SizeIs(5)) << "as docs/blocks.md lists them";
  const CapturedCall backward(stream, [&] { gla_block_backward(there.backward, context); });
  EXPECT_THAT(backward.launches(), testing::SizeIs(14)) << "as docs/blocks.md lists them";
}

TEST_F(GpuGlaBlock, AReplayedStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t B = 3, kPrompt = 70, kTokens = 90;
  unsigned seed = 20;
  for (const GlaBlockSizes& sizes : kSizes) {
    RandomGlaBlock random(DType::kBFloat16, sizes, ++seed);
    const std::int64_t d = sizes.d;
    const TensorView x = random.normal({B, kTokens, d}, 0, 1);
    const std::vector<double> expected = reference::gla_block(random.block, x).out;
    OnGpu gpu;
    const GlaBlock block = on_gpu(gpu, random.block);
    const TensorView state = gpu(random.states(B, 0));
    const TensorView prompt = gpu(tokens_of(random, x, 0, kPrompt));
    const TensorView end = gpu(tokens_of(random, x, 0, kPrompt));
    gla_block_forward({.block = block, .x = prompt, .final_state = state, .out = end});

    const TensorView got = random.zeros({B, d}), token = gpu(got), out = gpu(got);
    const GlaBlockStepArgs args = {.block = block, .x = token, .state = state, .out = out};
    const Workspace workspace =
        gpu.workspace(gla_block_step_workspace_bytes(args, device_properties(Device::cuda())));
    copy(token, tokens_of(random, x, kPrompt, 1));
    const SideStream stream;
    const CapturedCall step(
        stream, [&] { gla_block_step(args, {.stream = {stream.handle}, .workspace = workspace}); });
    EXPECT_THAT(step.launches(), testing::SizeIs(5)) << "as docs/blocks.md lists them";
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      if (t > kPrompt) {  // the first token was the captured call's own
        copy(token, tokens_of(random, x, t, 1));
        step.replay();
      }
      copy(got, out);
      const auto of_definition = token_of(expected, x.shape, t);
      ASSERT_LT(difference(values_of(got), of_definition), 1e-2) << seed << " token " << t;
    }
  }
}

}  // namespace
}  // namespace tandem::tools
