// mamba2_block on a GPU: against its fp64 definition, replayed with the same bits, and its step as
// a captured graph that is replayed token by token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "block_outputs.h"
#include "cpp/random_mamba2_block.h"
#include "on_gpu.h"
#include "reference/mamba2_block.h"

namespace tandem::tools {
namespace {

Mamba2Block on_gpu(OnGpu& gpu, const Mamba2Block& host) {
  Mamba2Block block = host;
  for_each_mamba2_parameter(
      [&](const char*, auto weight, auto) { block.*weight = gpu(host.*weight); });
  return block;
}

Mamba2States on_gpu(OnGpu& gpu, const Mamba2States& host) {
  return {gpu(host.conv), gpu(host.state)};
}

Mamba2BlockTraining on_gpu(OnGpu& gpu, const Mamba2BlockTraining& host) {
  Mamba2BlockTraining made = replaced(host, [&](const TensorView& view) { return gpu(view); });
  made.forward.cu_seqlens = made.backward.cu_seqlens = gpu(host.forward.cu_seqlens);
  const std::size_t bytes = host.forward.saved->bytes;
  made.backward.saved = {gpu.memory(bytes), bytes};
  made.forward.saved = made.backward.saved;
  return made;
}

/// What either call needs, given at once.
Workspace workspace_of(OnGpu& gpu, const Mamba2BlockTraining& call) {
  const DeviceProperties& device = device_properties(Device::cuda());
  return gpu.workspace(std::max(mamba2_block_forward_workspace_bytes(call.forward, device),
                                mamba2_block_backward_workspace_bytes(call.backward, device)));
}

class GpuMamba2Block : public OnHopper {};

const std::vector<Mamba2BlockSizes> kSizes = {
    {.d = 256, .H = 8, .P = 64, .G = 1, .N = 128},
    {.d = 264, .H = 4, .P = 64, .G = 2, .N = 64, .W = 3, .conv_bias = false},
    {.d = 200, .H = 3, .P = 20, .G = 1, .N = 36}};  // at no whole 16 bytes

/// Expects a forward and a backward to be right, and replayed to have the same bits.
void expect_training(DType dtype, const Mamba2BlockSizes& sizes, std::int64_t B, std::int64_t T,
                     const std::vector<std::int64_t>& begins, unsigned seed) {
  const std::string which = to_string(dtype) + " " + std::to_string(seed);
  RandomMamba2Block random(dtype, sizes, seed);
  const Mamba2BlockTraining host = make_training(random, B, T, random.cu_seqlens(begins));
  const Mamba2BlockTraining exact = widened(random, host);
  mamba2_block_forward(exact.forward);
  mamba2_block_backward(exact.backward);
  const auto expected = reference::mamba2_block(host.forward.block, host.forward.x,
                                                host.forward.initial_states, begins);
  EXPECT_LT(difference(values_of(exact.forward.out), expected.out), 1e-12) << which;

  // What the dtype's roundings alone do: a group whose norm is small makes much of them.
  mamba2_block_forward(host.forward);
  mamba2_block_backward(host.backward);
  const std::vector<double> on_cpu = errors_of(host, exact);

  OnGpu gpu;
  const Mamba2BlockTraining there = on_gpu(gpu, host);
  const Workspace workspace = workspace_of(gpu, there);
  const SideStream stream;
  const CapturedCall training(stream, [&] {
    const Context context = {.stream = {stream.handle}, .workspace = workspace};
    mamba2_block_forward(there.forward, context);
    mamba2_block_backward(there.backward, context);
  });
  // Of what there is a number per head of, sums over tokens whose terms mostly cancel, more.
  const auto tolerance = [&](const std::string& name) {
    const bool of_head = name == "A_log" || name == "dt_bias" || name == "D";
    return (dtype == DType::kFloat16 ? 3e-3 : 2.4e-2) * (of_head ? 3 : 1);
  };
  expect_outputs(which, training, host, there, exact,
                 [&, rounded = on_cpu.begin()](const std::string& name) mutable {
                   return std::max(tolerance(name), 2 * *rounded++);
                 });
}

TEST_F(GpuMamba2Block, ForwardAndBackwardAreThoseOfFp64) {
  unsigned seed = 10;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Mamba2BlockSizes& sizes : kSizes) {
      expect_training(dtype, sizes, 2, 200, {}, ++seed);
      expect_training(dtype, sizes, 3, 1, {}, ++seed);
      expect_training(dtype, sizes, 1, 300, {0, 70, 70, 71, 300}, ++seed);
    }
  }
}

TEST_F(GpuMamba2Block, LaunchesWhatTheDocumentLists) {
  RandomMamba2Block random(DType::kBFloat16, {.d = 256, .H = 8, .P = 64, .G = 8, .N = 64}, 31);
  OnGpu gpu;
  Mamba2BlockTraining there = on_gpu(gpu, make_training(random, 2, 256));
  const Workspace workspace = workspace_of(gpu, there);
  const SideStream stream;
  const Context context = {.stream = {stream.handle}, .workspace = workspace};
  const CapturedCall forward(stream, [&] { mamba2_block_forward(there.forward, context); });
  EXPECT_THAT(forward.launches(), testing::SizeIs(8)) << "as docs/blocks.md lists them";
  const CapturedCall backward(stream, [&] { mamba2_block_backward(there.backward, context); });
  EXPECT_THAT(backward.launches(), testing::SizeIs(20)) << "as docs/blocks.md lists them";
}

TEST_F(GpuMamba2Block, AReplayedStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t B = 3, kPrompt = 70, kTokens = 90;
  unsigned seed = 20;
  for (const Mamba2BlockSizes& sizes : {kSizes[0], kSizes[1]}) {
    RandomMamba2Block random(DType::kBFloat16, sizes, ++seed);
    const std::int64_t d = sizes.d;
    const TensorView x = random.normal({B, kTokens, d}, 0, 1);
    const std::vector<double> expected = reference::mamba2_block(random.block, x).out;
    OnGpu gpu;
    const Mamba2Block block = on_gpu(gpu, random.block);
    const Mamba2States states = on_gpu(gpu, random.states(B, 0));
    const TensorView prompt = gpu(tokens_of(random, x, 0, kPrompt));
    const TensorView end = gpu(tokens_of(random, x, 0, kPrompt));
    mamba2_block_forward({.block = block, .x = prompt, .final_states = states, .out = end});

    const TensorView got = random.zeros({B, d}), token = gpu(got), out = gpu(got);
    const Mamba2BlockStepArgs args = {.block = block, .x = token, .states = states, .out = out};
    const Workspace workspace =
        gpu.workspace(mamba2_block_step_workspace_bytes(args, device_properties(Device::cuda())));
    copy(token, tokens_of(random, x, kPrompt, 1));
    const SideStream stream;
    const CapturedCall step(stream, [&] {
      mamba2_block_step(args, {.stream = {stream.handle}, .workspace = workspace});
    });
    EXPECT_THAT(step.launches(), testing::SizeIs(8)) << "as docs/blocks.md lists them";
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      if (t > kPrompt) {  // the first token was the captured call's own
        copy(token, tokens_of(random, x, t, 1));
        step.replay();
      }
      copy(got, out);
      const auto of_definition = token_of(expected, x.shape, t);
      ASSERT_LT(difference(values_of(got), of_definition), 1.2e-2) << seed << " token " << t;
    }
  }
}

}  // namespace
}  // namespace tandem::tools
