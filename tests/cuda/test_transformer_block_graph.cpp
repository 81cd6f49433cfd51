// transformer_block on a GPU: against its fp64 definition, and its step as a captured graph that is
// replayed token by token.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/random_transformer_block.h"
#include "on_gpu.h"
#include "reference/transformer_block.h"

namespace tandem::tools {
namespace {

TransformerBlock on_gpu(OnGpu& gpu, const TransformerBlock& host) {
  TransformerBlock block = host;
  for (TensorView TransformerBlock::*one :
       {&TransformerBlock::input_layernorm, &TransformerBlock::q_proj, &TransformerBlock::k_proj,
        &TransformerBlock::v_proj, &TransformerBlock::rope_cos, &TransformerBlock::rope_sin,
        &TransformerBlock::o_proj, &TransformerBlock::post_attention_layernorm,
        &TransformerBlock::gate_proj, &TransformerBlock::up_proj, &TransformerBlock::down_proj}) {
    block.*one = gpu(host.*one);
  }
  for (std::optional<TensorView> TransformerBlock::*one :
       {&TransformerBlock::q_bias, &TransformerBlock::k_bias, &TransformerBlock::v_bias,
        &TransformerBlock::q_norm, &TransformerBlock::k_norm, &TransformerBlock::o_bias}) {
    block.*one = gpu(host.*one);
  }
  return block;
}

KeyValueCache on_gpu(OnGpu& gpu, const KeyValueCache& host) {
  return {gpu(host.k), gpu(host.v), gpu(host.lengths)};
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
    EXPECT_EQ(step.launches(), 9U) << "as docs/blocks.md lists them";
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
