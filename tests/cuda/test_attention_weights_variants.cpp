// The host side of attention_weights on CUDA: which variant a problem gets, what goes through the
// workspace, how queries are cut. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/attention_weights/variants.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda::attention_weights {
namespace {

using ::testing::HasSubstr;

/// Contiguous tensors at aligned addresses that nothing reads.
AttentionWeightsForwardArgs forward_args(std::int64_t B, std::int64_t TQ, std::int64_t TK,
                                         std::int64_t H, std::int64_t K,
                                         DType dtype = DType::kBFloat16) {
  AttentionWeightsForwardArgs args;
  args.q = view(1, {B, TQ, H, K}, dtype);
  args.k = view(2, {B, TK, H, K}, dtype);
  args.w = view(3, {B, H, TQ, TK}, dtype);
  return args;
}

AttentionWeightsBackwardArgs backward_args(std::int64_t B, std::int64_t TQ, std::int64_t TK,
                                           std::int64_t H, std::int64_t K) {
  AttentionWeightsBackwardArgs args;
  args.q = view(1, {B, TQ, H, K});
  args.k = view(2, {B, TK, H, K});
  args.w = view(3, {B, H, TQ, TK});
  args.d_w = view(4, {B, H, TQ, TK});
  args.dq = view(5, {B, TQ, H, K});
  args.dk = view(6, {B, TK, H, K});
  return args;
}

std::string chosen(const AttentionWeightsForwardArgs& args) {
  return chosen_variant(&attention_weights_forward_workspace_bytes, make_problem(args), false, "");
}
std::string chosen(const AttentionWeightsBackwardArgs& args) {
  return chosen_variant(&attention_weights_backward_workspace_bytes, make_problem(args), false, "");
}
std::size_t workspace_bytes(const AttentionWeightsForwardArgs& args) {
  return attention_weights_forward_workspace_bytes(make_problem(args), kDevice, {});
}
std::size_t workspace_bytes(const AttentionWeightsBackwardArgs& args) {
  return attention_weights_backward_workspace_bytes(make_problem(args), kDevice, {});
}

TEST(AttentionWeightsVariants, HeadDimsChoose) {
  const auto name = [](std::int64_t K) { return chosen(forward_args(1, 128, 128, 2, K)); };
  EXPECT_EQ(name(8), "attention_weights_forward.sm90.bf16.k64.keys128");
  EXPECT_EQ(name(64), "attention_weights_forward.sm90.bf16.k64.keys128");
  EXPECT_EQ(name(72), "attention_weights_forward.sm90.bf16.k128");
  EXPECT_EQ(name(256), "attention_weights_forward.sm90.bf16.k256");
  EXPECT_EQ(chosen(forward_args(1, 128, 128, 2, 64, DType::kFloat16)),
            "attention_weights_forward.sm90.fp16.k64.keys128");
  EXPECT_EQ(chosen(backward_args(1, 128, 128, 2, 136)),
            "attention_weights_backward.sm90.bf16.k256");
}

/// Rows that fit on chip have kernels of their own.
TEST(AttentionWeightsVariants, KeysChoose) {
  const auto name = [](std::int64_t keys) { return chosen(forward_args(1, 128, keys, 2, 64)); };
  const std::string any = "attention_weights_forward.sm90.bf16.k64";
  EXPECT_EQ(name(128), any + ".keys128");
  EXPECT_EQ(name(136), any + ".keys256");
  EXPECT_EQ(name(256), any + ".keys256");
  EXPECT_EQ(name(264), any + ".keys384");
  EXPECT_EQ(name(392), any + ".keys512");
  EXPECT_EQ(name(768), any + ".keys768");
  EXPECT_EQ(name(1024), any + ".keys1024");
  EXPECT_EQ(name(1032), any);
}

/// Shares of tiles: as many as there is room for, or whole parts of heads.
TEST(AttentionWeightsVariants, RowsAreShared) {
  const auto shares = [](std::int64_t heads, std::int64_t queries, std::int64_t most) {
    AttentionSizes sizes;
    sizes.B = 1;
    sizes.H = static_cast<int>(heads);
    sizes.TQ = queries;
    return row_shares(sizes, 32, most);
  };
  EXPECT_EQ(shares(1, 33, 132), 2);        // no more than tiles
  EXPECT_EQ(shares(64, 1024, 132), 128);   // 16 tiles each, as with 132
  EXPECT_EQ(shares(96, 1024, 132), 132);   // 24 tiles instead of 32
  EXPECT_EQ(shares(200, 1024, 132), 132);  // more heads than there is room for
}

TEST(AttentionWeightsVariants, RefusalsNameTheLimit) {
  try {
    chosen(forward_args(1, 128, 128, 2, 264));
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("bf16.k256: takes K <= 256, got 264"));
    EXPECT_THAT(error.what(), HasSubstr("sm90.fp16.k64: takes fp16, got bf16"));
  }
}

/// What TMA cannot read goes through the workspace; weights that are not whole pieces of 16 bytes
/// are written where they lie.
TEST(AttentionWeightsVariants, OtherLayoutsAreCopied) {
  EXPECT_EQ(workspace_bytes(forward_args(2, 100, 96, 3, 64)), 0u);
  const std::string any = "attention_weights_forward.sm90.bf16.k64";
  EXPECT_EQ(chosen(forward_args(2, 96, 100, 3, 64)), any + ".keys128");
  EXPECT_EQ(chosen(forward_args(2, 96, 1001, 3, 64)), any + ".keys1024");
  EXPECT_EQ(workspace_bytes(forward_args(2, 96, 1001, 3, 64)), 0u);
  EXPECT_EQ(chosen(forward_args(2, 96, 1025, 3, 64)), any);
  EXPECT_EQ(workspace_bytes(forward_args(2, 96, 1025, 3, 64)), 0u);
  auto args = forward_args(2, 100, 92, 3, 64);
  args.k.data = static_cast<char*>(args.k.data) + 2;
  EXPECT_EQ(chosen(args), any + ".keys128.copied");
  EXPECT_EQ(workspace_bytes(args), 2u * 92 * 3 * 64 * 2);  // of k alone
  auto backward = backward_args(2, 100, 96, 3, 64);
  backward.d_w.strides[1] = 0;  // heads share one
  EXPECT_EQ(chosen(backward), "attention_weights_backward.sm90.bf16.k64.copied");
}

TEST(AttentionWeightsVariants, WithoutElementsThereIsNothingToCopy) {
  for (const auto& [TQ, TK] : {std::pair{0, 70}, {70, 0}, {0, 0}}) {
    EXPECT_EQ(chosen(forward_args(2, TQ, TK, 3, 64)),
              "attention_weights_forward.sm90.bf16.k64.keys128");
    EXPECT_EQ(chosen(backward_args(2, TQ, TK, 3, 64)), "attention_weights_backward.sm90.bf16.k64");
  }
}

TEST(AttentionWeightsPlan, ABackwardKeepsAMeanForEachRowOfWholeTiles) {
  EXPECT_EQ(workspace_bytes(backward_args(2, 129, 96, 3, 64)), 2u * 3 * 256 * 4);
}

/// A strip is as long as leaves no multiprocessor without one; under a mask one turn.
TEST(AttentionWeightsPlan, StripsFillTheDevice) {
  const auto strip = [](std::int64_t B, std::int64_t T, std::int64_t H, bool causal = false) {
    AttentionWeightsForwardArgs args = forward_args(B, T, T, H, 64);
    args.causal = causal;
    return choose_strip(make_problem(args), 132);
  };
  EXPECT_EQ(strip(1, 128, 1), 1);
  EXPECT_EQ(strip(4, 1024, 16), 2);   // 128 CTAs
  EXPECT_EQ(strip(1, 4096, 32), 4);   // 128 CTAs
  EXPECT_EQ(strip(64, 8192, 16), 1);  // 249 turns; with longer strips more
  EXPECT_EQ(strip(4, 1024, 16, true), 1);
}

}  // namespace
}  // namespace tandem::cuda::attention_weights
