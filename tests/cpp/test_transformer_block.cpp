// transformer_block on the CPU: against its definition, in steps, in place, and what it refuses.
// Its backward: test_transformer_block_backward.cpp; on a GPU:
// tests/cuda/test_transformer_block_graph.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "random_transformer_block.h"
#include "reference/transformer_block.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-12;
    case DType::kFloat32: return 1e-6;
    case DType::kFloat16: return 1e-3;
    default: return 8e-3;
  }
}

const std::vector<BlockSizes> kSizes = {
    {},
    {.HKV = 4, .biases = true},
    {.d = 40, .H = 3, .HKV = 1, .K = 24, .F = 56, .biases = true, .norms = true}};

TEST(TransformerBlock, IsItsDefinition) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    unsigned seed = 1;
    for (const BlockSizes& sizes : kSizes) {
      RandomTransformerBlock random(dtype, sizes, ++seed);
      if (seed % 2 == 0) random.block.window = 5;
      random.block.activation = static_cast<GateActivation>(seed % 4);
      const TensorView x = random.normal({2, 13, sizes.d}, 0, 1), out = random.zeros(x.shape);
      transformer_block_forward({.block = random.block, .x = x, .out = out});
      const auto expected = reference::transformer_block(random.block, x);
      EXPECT_LT(difference(values_of(out), expected), tolerance(dtype)) << to_string(dtype) << seed;
      transformer_block_forward({.block = random.block, .x = x, .out = x});
      EXPECT_EQ(values_of(x), values_of(out)) << "in place";
    }
  }
}

TEST(TransformerBlock, TakesPackedSequences) {
  const std::vector<std::int64_t> begins = {0, 5, 5, 40, 47};
  for (const BlockSizes& sizes : kSizes) {
    RandomTransformerBlock random(DType::kFloat64, sizes, 3);
    random.block.window = 20;
    const TensorView x = random.normal({1, 47, sizes.d}, 0, 1), out = random.zeros(x.shape);
    transformer_block_forward(
        {.block = random.block, .x = x, .cu_seqlens = random.cu_seqlens(begins), .out = out});
    EXPECT_LT(difference(values_of(out), reference::transformer_block(random.block, x, begins)),
              1e-12);
  }
}

/// Token t of x [B,T,d], as a step takes it.
TensorView token(RandomTensors& memory, const TensorView& x, std::int64_t t) {
  const TensorView one = tokens_of(memory, x, t, 1);
  return TensorView::contiguous(one.data, one.dtype, {x.shape[0], x.shape[2]});
}

TEST(TransformerBlock, AStepIsTheNextTokenOfTheSequence) {
  constexpr std::int64_t kPrompt = 4, kTokens = 9;
  for (const BlockSizes& sizes : kSizes) {
    RandomTransformerBlock random(DType::kFloat64, sizes, 5);
    random.block.window = 6;
    const TensorView x = random.normal({2, kTokens, sizes.d}, 0, 1), out = random.zeros(x.shape);
    transformer_block_forward({.block = random.block, .x = x, .out = out});

    const KeyValueCache cache = random.cache(2, kTokens);
    const TensorView prompt = tokens_of(random, x, 0, kPrompt), end = random.zeros(prompt.shape);
    transformer_block_forward({.block = random.block, .x = prompt, .cache = cache, .out = end});
    for (std::int64_t t = kPrompt; t < kTokens; ++t) {
      const TensorView one = token(random, x, t), got = random.zeros(one.shape);
      transformer_block_step({.block = random.block, .x = one, .cache = cache, .out = got});
      EXPECT_LT(difference(values_of(got), values_of(token(random, out, t))), 1e-12) << t;
    }
    EXPECT_EQ(static_cast<std::int32_t*>(cache.lengths.data)[1], kTokens);
    // A full cache stays as it is.
    const auto before = values_of(cache.k);
    const TensorView one = token(random, x, 0);
    transformer_block_step({.block = random.block, .x = one, .cache = cache, .out = one});
    EXPECT_EQ(values_of(cache.k), before);
    EXPECT_EQ(static_cast<std::int32_t*>(cache.lengths.data)[1], kTokens);
  }
}

TEST(TransformerBlock, RunsInTheWorkspaceItAsksFor) {
  RandomTransformerBlock random(DType::kFloat32, {}, 1);
  const TensorView x = random.normal({1, 7, 64}, 0, 1), out = random.zeros(x.shape);
  const TransformerBlockForwardArgs args = {.block = random.block, .x = x, .out = out};
  const std::size_t bytes =
      transformer_block_forward_workspace_bytes(args, DeviceProperties::cpu());
  transformer_block_forward(args);
  const auto expected = values_of(out);
  std::vector<char> memory(bytes + 512, 7);
  char* aligned = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256);
  transformer_block_forward(args, {.workspace = {aligned, bytes}});
  EXPECT_EQ(values_of(out), expected);
  EXPECT_EQ(aligned[bytes], 7);
  try {
    transformer_block_forward(args, {.workspace = {aligned, bytes - 1}});
    FAIL() << "was not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(), "[transformer_block_forward] workspace must have at least " +
                                std::to_string(bytes) + " bytes, got " + std::to_string(bytes - 1));
  }
}

TEST(TransformerBlock, RefusesWhatItCannotRunAndWritesNothing) {
  using Args = TransformerBlockForwardArgs;
  const std::vector<std::pair<std::function<void(Args&)>, std::string>> spoilt = {
      {[](Args& args) { args.block.heads = 3; },
       "[transformer_block_forward] heads must divide q_proj's 64 rows, got 3"},
      {[](Args& args) { args.block.key_value_heads = 0; },
       "[transformer_block_forward] key_value_heads must be positive, got 0"},
      {[](Args& args) { args.block.window = 0; },
       "[transformer_block_forward] window must be positive, got 0"},
      {[](Args& args) { args.out.shape[1] = 6; },
       "[transformer_block_forward] out must have shape x's = [1,7,64], got [1,6,64]"},
      {[](Args& args) { args.cache->k.shape[1] = 6; },
       "[transformer_block_forward] cache must have room for T = 7 tokens, got 6"},
      {[](Args& args) { args.cache->lengths.dtype = DType::kFloat32; },
       "[transformer_block_forward] cache.lengths must have dtype int32, got fp32"},
      {[](Args& args) { args.cache->v = args.cache->k; },
       "[transformer_block_forward] cache.k must not overlap cache.v, got views that share memory"},
      {[](Args& args) { args.cu_seqlens = args.cache->lengths; },
       "[transformer_block_forward] cu_seqlens must not be given beside cache"},
      {[](Args& args) { args.x.shape[1] = args.out.shape[1] = 0; },
       "[transformer_block_forward] T must be positive, got 0"},
      {[](Args& args) { args.block.down_proj.shape[1] = 95; }, "[gated_output_forward] weight"},
      {[](Args& args) { args.block.eps = -1; }, "[rms_norm_gemm_forward] eps"}};
  for (const auto& [spoil, text] : spoilt) {
    RandomTransformerBlock random(DType::kFloat32, {}, 1);
    const TensorView x = random.normal({1, 7, 64}, 0, 1), out = random.zeros(x.shape);
    Args args = {.block = random.block, .x = x, .cache = random.cache(1, 8), .out = out};
    const TensorView k = args.cache->k;
    spoil(args);
    try {
      transformer_block_forward(args);
      ADD_FAILURE() << "was not refused: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(text));
    }
    EXPECT_THAT(values_of(out), testing::Each(0.0)) << text;
    EXPECT_THAT(values_of(k), testing::Each(0.0)) << text;
  }
}

}  // namespace
}  // namespace tandem::tools
