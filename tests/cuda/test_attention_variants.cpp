// The host side of attention on CUDA: which variant a problem gets and why others are passed over,
// what goes through the workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/attention/backward_params.h"
#include "cuda/attention/choose_parts.h"
#include "cuda/attention/variants.h"
#include "ops/attention.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda::attention {
namespace {

using ::testing::HasSubstr;

/// Contiguous tensors at aligned addresses that nothing reads.
AttentionForwardArgs forward_args(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t K,
                                  std::int64_t V, DType dtype = DType::kBFloat16) {
  AttentionForwardArgs args;
  args.q = view(1, {B, T, H, K}, dtype);
  args.k = view(2, {B, T, H, K}, dtype);
  args.v = view(3, {B, T, H, V}, dtype);
  args.o = view(4, {B, T, H, V}, dtype);
  return args;
}

AttentionBackwardArgs backward_args(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t K,
                                    std::int64_t V) {
  AttentionBackwardArgs args;
  args.q = view(1, {B, T, H, K});
  args.k = view(2, {B, T, H, K});
  args.v = view(3, {B, T, H, V});
  args.o = view(4, {B, T, H, V});
  args.log_sum_exp = view(5, {B, H, T}, DType::kFloat32);
  args.d_o = view(6, {B, T, H, V});
  args.dq = view(7, {B, T, H, K});
  args.dk = view(8, {B, T, H, K});
  args.dv = view(9, {B, T, H, V});
  return args;
}

std::string chosen(const AttentionForwardArgs& args) {
  return chosen_variant(&attention_forward_workspace_bytes, make_problem(args), false, "");
}
std::string chosen(const AttentionBackwardArgs& args) {
  return chosen_variant(&attention_backward_workspace_bytes, make_problem(args), false, "");
}
std::size_t workspace_bytes(const AttentionForwardArgs& args) {
  return attention_forward_workspace_bytes(make_problem(args), kDevice, {});
}

TEST(AttentionVariants, HeadDimsChoose) {
  const auto name = [](std::int64_t K, std::int64_t V) {
    return chosen(forward_args(1, 128, 2, K, V));
  };
  EXPECT_EQ(name(64, 64), "attention_forward.sm90.bf16.k64_v64");
  EXPECT_EQ(name(8, 40), "attention_forward.sm90.bf16.k64_v64");
  EXPECT_EQ(name(72, 72), "attention_forward.sm90.bf16.k96_v96");
  EXPECT_EQ(name(128, 128), "attention_forward.sm90.bf16.k128_v128");
  EXPECT_EQ(name(192, 128), "attention_forward.sm90.bf16.k192_v128");
  EXPECT_EQ(name(64, 256), "attention_forward.sm90.bf16.k256_v256");
  EXPECT_EQ(chosen(forward_args(1, 128, 2, 64, 64, DType::kFloat16)),
            "attention_forward.sm90.fp16.k64_v64");
  EXPECT_EQ(chosen(backward_args(1, 128, 2, 64, 64)), "attention_backward.sm90.bf16.k64_v64");
  EXPECT_EQ(chosen(backward_args(1, 128, 2, 72, 72)), "attention_backward.sm90.bf16.k96_v96");
  EXPECT_EQ(chosen(backward_args(1, 128, 2, 72, 128)), "attention_backward.sm90.bf16.k128_v128");
  EXPECT_EQ(chosen(backward_args(1, 128, 2, 192, 128)), "attention_backward.sm90.bf16.k192_v128");
  EXPECT_EQ(chosen(backward_args(1, 128, 2, 64, 136)), "attention_backward.sm90.bf16.k192_v192");
  EXPECT_EQ(chosen(backward_args(1, 128, 2, 256, 256)), "attention_backward.sm90.bf16.k256_v256");
}

TEST(AttentionVariants, RefusalsNameTheLimit) {
  try {
    chosen(forward_args(1, 128, 2, 264, 64));
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("k256_v256: takes K <= 256, got 264"));
    EXPECT_THAT(error.what(), HasSubstr("sm90.fp16.k64_v64: takes fp16, got bf16"));
  }
  try {
    chosen(backward_args(1, 128, 2, 64, 264));
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("k256_v256: takes V <= 256, got 264"));
  }
}

/// What TMA cannot read, and stores of whole 16 bytes cannot write, goes through the workspace.
TEST(AttentionVariants, OtherLayoutsAreCopied) {
  AttentionForwardArgs args = forward_args(2, 100, 3, 64, 64);
  EXPECT_EQ(workspace_bytes(args), 0u);
  args.k.data = static_cast<char*>(args.k.data) + 2;
  EXPECT_EQ(chosen(args), "attention_forward.sm90.bf16.k64_v64.copied");
  EXPECT_EQ(workspace_bytes(args), 2u * 100 * 3 * 64 * 2);
  args = forward_args(2, 100, 3, 64, 64);
  args.v.strides[2] = 0;  // heads share one
  EXPECT_EQ(chosen(args), "attention_forward.sm90.bf16.k64_v64.copied");
  args = forward_args(2, 100, 3, 64, 60);  // rows of v and o
  EXPECT_EQ(workspace_bytes(args), 2 * 2u * 100 * 3 * 64 * 2);
  AttentionBackwardArgs backward = backward_args(2, 100, 3, 64, 64);
  backward.dv->strides = {100 * 3 * 68, 3 * 68, 68, 1};
  EXPECT_EQ(chosen(backward), "attention_backward.sm90.bf16.k64_v64.copied");
}

TEST(AttentionVariants, WithoutElementsThereIsNothingToCopy) {
  for (const auto& [TQ, TK] : {std::pair{0, 70}, {70, 0}, {0, 0}}) {
    AttentionForwardArgs args = forward_args(2, 70, 3, 64, 64);
    for (TensorView* x : {&args.q, &args.o}) *x = view(1, {2, TQ, 3, 64});
    for (TensorView* x : {&args.k, &args.v}) *x = view(2, {2, TK, 3, 64});
    args.o = view(4, {2, TQ, 3, 64});
    EXPECT_EQ(chosen(args), "attention_forward.sm90.bf16.k64_v64") << TQ << ' ' << TK;
  }
}

/// Tiles of unequal work are handed out by a number in memory.
TEST(AttentionPlan, ATicketWhereTilesSeeDifferentNumbersOfKeys) {
  AttentionForwardArgs args = forward_args(2, 1000, 3, 64, 64);
  EXPECT_EQ(workspace_bytes(args), 0u);
  args.causal = true;
  EXPECT_EQ(workspace_bytes(args), 256u);
  args.causal = false;
  args.lengths_k = view(10, {2}, DType::kInt32);
  EXPECT_EQ(workspace_bytes(args), 256u);
}

TEST(AttentionPlan, GradientsSumQueriesInTheWorkspace) {
  const auto bytes = [](std::int64_t T) {
    return attention_backward_workspace_bytes(make_problem(backward_args(2, T, 3, 128, 128)),
                                              kDevice, {.batch_invariant = true});  // no parts
  };
  EXPECT_GE(bytes(1024), std::size_t{2} * 1024 * 3 * 128 * 4);
  EXPECT_LT(bytes(1024), std::size_t{2} * 1024 * 3 * 128 * 5);
}

/// Causal, of 128 columns: B sequences of T tokens, `HKV` key heads that `group` heads each read.
AttentionBackwardParams order_of(std::int64_t B, std::int64_t T, std::int64_t HKV,
                                 std::int64_t group, std::int64_t window = -1) {
  AttentionBackwardArgs args = backward_args(B, T, HKV * group, 128, 128);
  for (TensorView* x : {&args.k, &args.v}) *x = view(2, {B, T, HKV, 128});
  args.dk = view(8, {B, T, HKV, 128});
  args.dv = view(9, {B, T, HKV, 128});
  args.causal = true;
  if (window >= 0) args.window_left = window;
  AttentionBackwardParams params;
  set_backward_params(params, make_problem(args), backward_tile(128, 128), {}, 132, nullptr);
  return params;
}

TEST(AttentionPlan, AsManyHeadsInEachTurn) {
  EXPECT_EQ(order_of(4, 2048, 8, 4).heads_together, 32);
  EXPECT_EQ(order_of(1, 8192, 16, 4).heads_together, 4);
  EXPECT_EQ(order_of(1, 4096, 8, 8).heads_together, 8);
  EXPECT_EQ(order_of(4, 1024, 16, 1).heads_together, 64);
  EXPECT_EQ(order_of(32, 512, 16, 1).heads_together, 52);  // of 512: what fits the cache
  for (const std::int64_t heads : {1, 5, 7, 24, 33}) {
    const int together = order_of(1, 4096, heads, 4).heads_together;
    const std::int64_t turns = ceil_div(heads, together);
    EXPECT_LE(1, together);
    EXPECT_LT(turns * together - heads, turns) << heads;  // the last lacks fewer
  }
  EXPECT_EQ(order_of(0, 1024, 8, 1).heads_together, 1);
}

/// Parts of heads and of tiles, by what tells the work of a block of keys. `keys` other than T: not
/// causal.
std::pair<int, int> parts_of(std::int64_t B, std::int64_t T, std::int64_t H, std::int64_t HKV,
                             bool causal = true, std::int64_t dim = 128, std::int64_t keys = 0) {
  if (keys == 0) keys = T;
  AttentionBackwardArgs args = backward_args(B, T, H, dim, dim);
  for (TensorView* x : {&args.k, &args.v}) *x = view(2, {B, keys, HKV, dim});
  args.dk = view(8, {B, keys, HKV, dim});
  args.dv = view(9, {B, keys, HKV, dim});
  args.causal = causal;
  const BackwardParts parts = choose_parts(
      make_problem(args).forward, backward_tile(static_cast<int>(dim), static_cast<int>(dim)), 132);
  return {parts.heads, parts.tiles};
}

TEST(AttentionPlan, HeadsArePartsWhereBlocksOfKeysAreFew) {
  using Parts = std::pair<int, int>;
  EXPECT_EQ(parts_of(1, 4096, 28, 4), Parts(2, 1));
  EXPECT_EQ(parts_of(1, 8192, 8, 1, true, 256), Parts(2, 1));
  EXPECT_EQ(parts_of(1, 1000, 32, 8), Parts(4, 1));
  EXPECT_EQ(parts_of(1, 2048, 32, 8), Parts(2, 1));
  EXPECT_EQ(parts_of(4, 2048, 32, 8), Parts(1, 1));
  EXPECT_EQ(parts_of(1, 8192, 32, 8), Parts(1, 1));
  EXPECT_EQ(parts_of(1, 4096, 32, 8, false), Parts(1, 1));
  EXPECT_EQ(parts_of(1, 0, 32, 8), Parts(1, 1));
}

TEST(AttentionPlan, QueriesHavePartsWhereHeadsAreFewToo) {
  using Parts = std::pair<int, int>;
  EXPECT_EQ(parts_of(2, 4096, 20, 20, false, 64, 77), Parts(1, 3));
  EXPECT_EQ(parts_of(1, 4096, 8, 1, false, 64, 77), Parts(8, 16));
  EXPECT_EQ(parts_of(4, 1024, 16, 16, false, 64), Parts(1, 1));
  EXPECT_EQ(parts_of(16, 197, 12, 12, false, 64), Parts(1, 1));
}

/// What a part has of dk and dv is summed up in fp32.
TEST(AttentionPlan, PartsTakeWorkspaceUnlessBatchInvariant) {
  AttentionBackwardArgs args = backward_args(1, 1000, 32, 128, 128);
  for (TensorView* x : {&args.k, &args.v}) *x = view(2, {1, 1000, 8, 128});
  args.dk = view(8, {1, 1000, 8, 128});
  args.dv = view(9, {1, 1000, 8, 128});
  args.causal = true;
  const auto bytes = [&](bool batch_invariant) {
    return attention_backward_workspace_bytes(make_problem(args), kDevice,
                                              {.batch_invariant = batch_invariant});
  };
  EXPECT_EQ(bytes(false) - bytes(true), std::size_t{4} * 1000 * 8 * 2 * 128 * 4);
}

TEST(AttentionPlan, HeadByHeadInWindows) {
  EXPECT_FALSE(order_of(1, 16384, 8, 4).head_by_head);
  EXPECT_FALSE(order_of(1, 4096, 8, 4, 4096).head_by_head);  // all keys
  EXPECT_TRUE(order_of(1, 16384, 8, 4, 4095).head_by_head);
}

/// A sequence's gradients are then summed in one order, whatever is packed with it.
TEST(AttentionPlan, ThePackedOrderDoesNotDependOnLengths) {
  for (const std::int64_t tokens : {100, 10000}) {
    AttentionBackwardArgs args = backward_args(1, tokens, 4, 128, 128);
    args.cu_seqlens_q = view(10, {4}, DType::kInt32);
    args.cu_seqlens_k = view(11, {4}, DType::kInt32);
    args.causal = true;
    const auto head_by_head = [&] {
      AttentionBackwardParams params;
      set_backward_params(params, make_problem(args), backward_tile(128, 128), {}, 132, nullptr);
      return params.head_by_head;
    };
    EXPECT_FALSE(head_by_head());
    args.window_left = 1000;
    EXPECT_TRUE(head_by_head());
  }
}

}  // namespace
}  // namespace tandem::cuda::attention
