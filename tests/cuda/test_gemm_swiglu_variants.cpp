// The host side of gemm_swiglu on CUDA: which variant a problem gets, what goes through the
// workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gemm_swiglu/forward_plan.h"
#include "ops/gemm_swiglu.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gemm_swiglu {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

/// Contiguous tensors at aligned addresses that nothing reads.
GemmSwigluForwardArgs forward_args(std::int64_t M, std::int64_t d, std::int64_t F) {
  GemmSwigluForwardArgs args;
  args.x = view(1, {M, d});
  args.gate_weight = view(2, {F, d});
  args.up_weight = view(3, {F, d});
  args.out = view(4, {M, F});
  return args;
}

GemmSwigluBackwardArgs backward_args(std::int64_t M, std::int64_t d, std::int64_t F) {
  GemmSwigluBackwardArgs args;
  args.x = view(1, {M, d});
  args.gate_weight = view(2, {F, d});
  args.up_weight = view(3, {F, d});
  args.gate_slope = view(4, {M, F});
  args.up_slope = view(5, {M, F});
  args.d_out = view(6, {M, F});
  args.dx = view(7, {M, d});
  args.d_gate_weight = view(8, {F, d});
  args.d_up_weight = view(9, {F, d});
  return args;
}

std::string chosen(const GemmSwigluForwardArgs& args, bool batch_invariant = false,
                   std::string_view forced = "") {
  return chosen_variant(&gemm_swiglu_forward_workspace_bytes, make_problem(args), batch_invariant,
                        forced);
}

TEST(GemmSwigluVariants, ByTheNumberOfRows) {
  EXPECT_THAT(chosen(forward_args(1, 4096, 14336)), EndsWith(".m8"));
  EXPECT_THAT(chosen(forward_args(16, 4096, 14336)), EndsWith(".m16"));
  EXPECT_THAT(chosen(forward_args(64, 4096, 14336)), EndsWith(".m64"));
  EXPECT_THAT(chosen(forward_args(200, 7168, 2048)), EndsWith(".m128"));
  EXPECT_THAT(chosen(forward_args(200, 4096, 12288)), EndsWith(".m200.n192"));  // 128 tiles
  EXPECT_THAT(chosen(forward_args(300, 4096, 14336)), EndsWith(".m208.n256"));  // twice 150
  EXPECT_THAT(chosen(forward_args(200, 2048, 8192)), EndsWith(".n128"));
  EXPECT_THAT(chosen(forward_args(512, 4096, 14336)), EndsWith(".n128"));
}

TEST(GemmSwigluVariants, OneForAnyNumberOfRowsWhereBatchesMustNotMatter) {
  for (const std::int64_t M : {1, 64, 512, 4096}) {
    EXPECT_THAT(chosen(forward_args(M, 2048, 2048), true), EndsWith(".n128")) << M;
  }
  try {
    chosen(forward_args(1, 2048, 2048), true, "gemm_swiglu_forward.sm90.bf16.n256");
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("takes these arguments"));
  }
}

TEST(GemmSwigluVariants, EachCanBeForced) {
  for (const char* name :
       {"gemm_swiglu_forward.sm90.bf16.n128", "gemm_swiglu_forward.sm90.bf16.n256"}) {
    EXPECT_EQ(chosen(forward_args(4096, 2048, 2048), false, name), name);
  }
  EXPECT_THROW(chosen(forward_args(9, 64, 64), false, "gemm_swiglu_forward.sm90.bf16.m8"),
               Unsupported);
}

TEST(GemmSwigluPlan, HoldsTheNormalizedRowsOrCopies) {
  GemmSwigluForwardArgs args = forward_args(100, 60, 48);
  args.up_weight.data = static_cast<char*>(args.up_weight.data) + 2;
  // Rows of 60 elements are no multiple of 16 bytes: all three are copied to rows of 64.
  ForwardPlan plan = plan_forward(make_problem(args));
  EXPECT_TRUE(plan.copies_x && plan.copies_gate_weight && plan.copies_up_weight);
  EXPECT_GE(plan.workspace_bytes, (100u + 48 + 48) * 64 * 2);

  args = forward_args(100, 64, 48);
  EXPECT_EQ(plan_forward(make_problem(args)).workspace_bytes, 0u);
  args.norm_weight = view(10, {64});
  plan = plan_forward(make_problem(args));
  EXPECT_FALSE(plan.copies_x);
  EXPECT_EQ(plan.workspace_bytes, 100u * 64 * 2);
}

TEST(GemmSwigluPlan, GradientsTakeTheProjectionsWorkspaceAndTheNorms) {
  GemmSwigluBackwardArgs args = backward_args(1024, 2048, 4096);
  const auto bytes = [&] {
    return gemm_swiglu_backward_workspace_bytes(make_problem(args), kDevice, {});
  };
  const std::size_t without_norm = bytes();
  EXPECT_GE(without_norm, std::size_t{2} * 1024 * 4096 * 2);  // dg and du
  args.norm_weight = view(10, {2048});
  args.rstd = view(11, {1024}, DType::kFloat32);
  EXPECT_GE(bytes(), without_norm + std::size_t{1024} * 2048 * 2);  // dn, then n
}

}  // namespace
}  // namespace tandem::cuda::gemm_swiglu
