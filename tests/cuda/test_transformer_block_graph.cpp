// transformer_block on a GPU: forward against its fp64 definition, backward against the CPU's in
// fp64, both replayed with the same bits, and its step as a captured graph that is replayed token
// by token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "block_outputs.h"
#include "cpp/random_transformer_block.h"
#include "on_gpu.h"
#include "reference/transformer_block.h"

namespace tandem::tools {
namespace {

TransformerBlock on_gpu(OnGpu& gpu, const TransformerBlock& host) {
  return replaced(host, [&](const TensorView& view) { return gpu(view); });
}

TransformerBlockTraining on_gpu(OnGpu& gpu, const TransformerBlockTraining& host) {
  TransformerBlockTraining made = replaced(host, [&](const TensorView& view) { return gpu(view); });
  made.forward.cu_seqlens = made.backward.cu_seqlens = gpu(host.forward.cu_seqlens);
  const std::size_t bytes = host.forward.saved->bytes;
  made.backward.saved = {gpu.memory(bytes), bytes};
  made.forward.saved = made.backward.saved;
  return made;
}

KeyValueCache on_gpu(OnGpu& gpu, const KeyValueCache& host) {
  return {gpu(host.k), gpu(host.v), gpu(host.lengths)};
}

/// What either call needs, given at once.
Workspace workspace_of(OnGpu& gpu, const TransformerBlockTraining& call) {
  const DeviceProperties& device = device_properties(Device::cuda());
  return gpu.workspace(std::max(transformer_block_forward_workspace_bytes(call.forward, device),
                                transformer_block_backward_workspace_bytes(call.backward, device)));
}

class GpuTransformerBlock : public OnHopper {};

const std::vector<BlockSizes> kSizes = {
    {.d = 256, .H = 4, .HKV = 2, .K = 64, .F = 512, .positions = 256},
    {.d = 384, .H = 3, .HKV = 3, .K = 128, .F = 640, .positions = 256, .biases = true},
    {.d = 256, .H = 4, .HKV = 1, .K = 128, .F = 320, .positions = 256, .norms = true}};

TEST_F(GpuTransformerBlock, IsItsDefinition) {
  unsigned seed = 10;
  for (const BlockSizes& sizes : kSizes) {
    RandomTransformerBlock random(DType::kBFloat16, sizes, ++seed);
    if (seed % 2 == 0) random.block.window = 50;
    const TensorView x = random.normal({2, 150, sizes.d}, 0, 1), out = random.zeros(x.shape);
    OnGpu gpu;
    const TensorView there = gpu(x), out_there = gpu(out);
    transformer_block_forward({.block = on_gpu(gpu, random.block), .x = there, .out = out_there});
    copy(out, out_there);
    const double error = difference(values_of(out), reference::transformer_block(random.block, x));
    EXPECT_LT(error, 8e-3) << seed;
  }
}

/// Expects a forward and a backward to be right, and replayed to have the same bits.
void expect_training(DType dtype, const BlockSizes& sizes, std::int64_t B, std::int64_t T,
                     const std::vector<std::int64_t>& begins, unsigned seed) {
  const std::string which = to_string(dtype) + " " + std::to_string(seed);
  RandomTransformerBlock random(dtype, sizes, seed);
  if (seed % 2 == 0) random.block.window = 50;
  const TransformerBlockTraining host = make_training(random, B, T, random.cu_seqlens(begins));
  const TransformerBlockTraining exact = widened(random, host);
  transformer_block_forward(exact.forward);
  transformer_block_backward(exact.backward);
  const auto expected = reference::transformer_block(host.forward.block, host.forward.x, begins);
  EXPECT_LT(difference(values_of(exact.forward.out), expected), 1e-12) << which;

  // What the dtype's roundings alone do: gradients of q and k are small where few keys are seen.
  transformer_block_forward(host.forward);
  transformer_block_backward(host.backward);
  const std::vector<double> on_cpu = errors_of(host, exact);

  OnGpu gpu;
  const TransformerBlockTraining there = on_gpu(gpu, host);
  const Workspace workspace = workspace_of(gpu, there);
  const SideStream stream;
  const CapturedCall training(stream, [&] {
    const Context context = {.stream = {stream.handle}, .workspace = workspace};
    transformer_block_forward(there.forward, context);
    transformer_block_backward(there.backward, context);
  });
  const double tolerance = dtype == DType::kFloat16 ? 3e-3 : 2.4e-2;
  expect_outputs(which, training, host, there, exact,
                 [&, rounded = on_cpu.begin()](const char*) mutable {
                   return std::max(tolerance, 2 * *rounded++);
                 });
}

TEST_F(GpuTransformerBlock, ForwardAndBackwardAreThoseOfFp64) {
  unsigned seed = 30;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const BlockSizes& sizes : kSizes) {
      expect_training(dtype, sizes, 2, 100, {}, ++seed);
      expect_training(dtype, sizes, 3, 2, {}, ++seed);
      expect_training(dtype, sizes, 1, 150, {0, 40, 40, 41, 150}, ++seed);
    }
  }
}

TEST_F(GpuTransformerBlock, TakesNoTokens) {
  RandomTransformerBlock random(DType::kBFloat16, kSizes[2], 50);
  const TransformerBlockTraining host = make_training(random, 2, 0);
  for_each_transformer_parameter([&](const char*, auto, auto gradient) {
    if (const auto& one = host.backward.gradients.*gradient) set_value(*one, 0, 1);
  });
  OnGpu gpu;
  const TransformerBlockTraining there = on_gpu(gpu, host);
  transformer_block_forward(there.forward);
  transformer_block_backward(there.backward);
  for_each_output(host, there, [](const char* name, const TensorView& to, const TensorView& from) {
    copy(to, from);
    EXPECT_EQ(values_of(to), std::vector<double>(to.shape.product(), 0.0)) << name;
  });
}

TEST_F(GpuTransformerBlock, LaunchesWhatTheDocumentLists) {
  RandomTransformerBlock random(DType::kBFloat16, kSizes[0], 51);
  OnGpu gpu;
  const TransformerBlockTraining there = on_gpu(gpu, make_training(random, 2, 256));
  const Workspace workspace = workspace_of(gpu, there);
  const SideStream stream;
  const Context context = {.stream = {stream.handle}, .workspace = workspace};
  const CapturedCall forward(stream, [&] { transformer_block_forward(there.forward, context); });
  EXPECT_THAT(forward.launches(), testing::SizeIs(8)) << "as docs/blocks.md lists them";
  const CapturedCall backward(stream, [&] { transformer_block_backward(there.backward, context); });
  // One more than the table's: the groups of heads of so few tokens have parts.
  EXPECT_THAT(backward.launches(), testing::SizeIs(18)) << "as docs/blocks.md lists them";
}

TEST_F(GpuTransformerBlock, AReplayedStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t B = 3, kPrompt = 70, kTokens = 90;
  unsigned seed = 20;
  for (const BlockSizes& sizes : kSizes) {
    RandomTransformerBlock random(DType::kBFloat16, sizes, ++seed);
    const std::int64_t d = sizes.d;
    const TensorView x = random.normal({B, kTokens, d}, 0, 1);
    const std::vector<double> expected = reference::transformer_block(random.block, x);
    OnGpu gpu;
    const TransformerBlock block = on_gpu(gpu, random.block);
    const KeyValueCache host_cache = random.cache(B, 128), cache = on_gpu(gpu, host_cache);
    const TensorView prompt = gpu(tokens_of(random, x, 0, kPrompt));
    transformer_block_forward({.block = block, .x = prompt, .cache = cache, .out = prompt});

    const TensorView got = random.zeros({B, d}), token = gpu(got), out = gpu(got);
    const TransformerBlockStepArgs args = {.block = block, .x = token, .cache = cache, .out = out};
    const Workspace workspace = gpu.workspace(
        transformer_block_step_workspace_bytes(args, device_properties(Device::cuda())));
    copy(token, tokens_of(random, x, kPrompt, 1));
    const SideStream stream;
    const CapturedCall step(stream, [&] {
      transformer_block_step(args, {.stream = {stream.handle}, .workspace = workspace});
    });
    EXPECT_THAT(step.launches(), testing::SizeIs(9)) << "as docs/blocks.md lists them";
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      if (t > kPrompt) {  // the first token was the captured call's own
        copy(token, tokens_of(random, x, t, 1));
        step.replay();
      }
      copy(got, out);
      const auto of_definition = token_of(expected, x.shape, t);
      ASSERT_LT(difference(values_of(got), of_definition), 1e-2) << seed << " token " << t;
    }
    copy(host_cache.lengths, cache.lengths);
    EXPECT_EQ(static_cast<std::int32_t*>(host_cache.lengths.data)[B - 1], kTokens);
  }
}

}  // namespace
}  // namespace tandem::tools
