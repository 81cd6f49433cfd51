// mamba2_block on a GPU: against its fp64 definition, replayed with the same bits, and its step as
// a captured graph that is replayed token by token.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpp/random_mamba2_block.h"
#include "on_gpu.h"
#include "reference/mamba2_block.h"

namespace tandem::tools {
namespace {

Mamba2Block on_gpu(OnGpu& gpu, const Mamba2Block& host) {
  Mamba2Block block = host;
  for (TensorView Mamba2Block::*one :
       {&Mamba2Block::input_norm, &Mamba2Block::in_proj, &Mamba2Block::conv1d_weight,
        &Mamba2Block::dt_bias, &Mamba2Block::A_log, &Mamba2Block::D, &Mamba2Block::norm,
        &Mamba2Block::out_proj}) {
    block.*one = gpu(host.*one);
  }
  block.conv1d_bias = gpu(host.conv1d_bias);
  return block;
}

Mamba2States on_gpu(OnGpu& gpu, const Mamba2States& host) {
  return {gpu(host.conv), gpu(host.state)};
}

class GpuMamba2Block : public OnHopper {};

const std::vector<Mamba2BlockSizes> kSizes = {
    {.d = 256, .H = 8, .P = 64, .G = 1, .N = 128},
    {.d = 264, .H = 4, .P = 64, .G = 2, .N = 64, .W = 3, .conv_bias = false},
    {.d = 200, .H = 3, .P = 20, .G = 1, .N = 36}};  // at no whole 16 bytes

/// Expects a forward to be right, and replayed to have the same bits.
void expect_forward(DType dtype, const Mamba2BlockSizes& sizes, std::int64_t B, std::int64_t T,
                    const std::vector<std::int64_t>& begins, unsigned seed) {
  const std::string which = to_string(dtype) + " " + std::to_string(seed);
  RandomMamba2Block random(dtype, sizes, seed);
  const auto N = begins.empty() ? B : static_cast<std::int64_t>(begins.size()) - 1;
  std::optional<TensorView> cu_seqlens;
  if (!begins.empty()) {
    cu_seqlens = random.zeros(DType::kInt32, {N + 1});
    for (std::int64_t i = 0; i <= N; ++i) {
      set_value(*cu_seqlens, i, static_cast<double>(begins[i]));
    }
  }
  const TensorView x = random.normal({B, T, sizes.d}, 0, 1), got = random.zeros(x.shape);
  const Mamba2States before = random.states(N, 0.5), after = random.states(N, 0);
  const auto expected = reference::mamba2_block(random.block, x, before, begins);

  OnGpu gpu;
  const Mamba2BlockForwardArgs args = {.block = on_gpu(gpu, random.block),
                                       .x = gpu(x),
                                       .cu_seqlens = gpu(cu_seqlens),
                                       .initial_states = on_gpu(gpu, before),
                                       .final_states = on_gpu(gpu, after),
                                       .out = gpu(got)};
  const Workspace workspace =
      gpu.workspace(mamba2_block_forward_workspace_bytes(args, device_properties(Device::cuda())));
  const SideStream stream;
  const CapturedCall forward(stream, [&] {
    mamba2_block_forward(args, {.stream = {stream.handle}, .workspace = workspace});
  });
  copy(got, args.out);
  copy(after.conv, args.final_states->conv);
  copy(after.state, args.final_states->state);
  const double tolerance = dtype == DType::kFloat16 ? 1.5e-3 : 1e-2;
  EXPECT_LT(difference(values_of(got), expected.out), tolerance) << which;
  EXPECT_LT(difference(values_of(after.conv), expected.conv), tolerance) << which;
  EXPECT_LT(difference(values_of(after.state), expected.state), tolerance) << which;
  const std::vector<double> first = values_of(got), first_state = values_of(after.state);
  require(cudaMemset(args.out.data, 0xff, x.shape.product() * size_of(dtype)));
  require(cudaDeviceSynchronize());
  forward.replay();
  copy(got, args.out);
  copy(after.state, args.final_states->state);
  EXPECT_EQ(values_of(got), first) << which << ", replayed";
  EXPECT_EQ(values_of(after.state), first_state) << which << ", replayed";
}

TEST_F(GpuMamba2Block, IsItsDefinition) {
  unsigned seed = 10;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Mamba2BlockSizes& sizes : kSizes) {
      expect_forward(dtype, sizes, 2, 200, {}, ++seed);
      expect_forward(dtype, sizes, 3, 1, {}, ++seed);
      expect_forward(dtype, sizes, 1, 300, {0, 70, 70, 71, 300}, ++seed);
    }
  }
}

TEST_F(GpuMamba2Block, LaunchesWhatTheDocumentLists) {
  RandomMamba2Block random(DType::kBFloat16, kSizes[0], 31);
  const TensorView x = random.normal({2, 256, 256}, 0, 1);
  OnGpu gpu;
  const Mamba2BlockForwardArgs args = {
      .block = on_gpu(gpu, random.block), .x = gpu(x), .out = gpu(x)};
  const Workspace workspace =
      gpu.workspace(mamba2_block_forward_workspace_bytes(args, device_properties(Device::cuda())));
  const SideStream stream;
  const CapturedCall forward(stream, [&] {
    mamba2_block_forward(args, {.stream = {stream.handle}, .workspace = workspace});
  });
  EXPECT_EQ(forward.launches(), 8U) << "as docs/blocks.md lists them";
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
    EXPECT_EQ(step.launches(), 8U) << "as docs/blocks.md lists them";
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
