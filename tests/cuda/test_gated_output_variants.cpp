// The host side of gated_output on CUDA: which variant a problem gets, what goes through the
// workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gated_output/forward_plan.h"
#include "ops/gated_output.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gated_output {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

/// Contiguous tensors at aligned addresses that nothing reads.
GatedOutputForwardArgs forward_args(std::int64_t M, std::int64_t d_in, std::int64_t d) {
  GatedOutputForwardArgs args;
  args.o = view(1, {M, d_in});
  args.gate = view(2, {M, d_in});
  args.weight = view(3, {d, d_in});
  args.residual = view(4, {M, d});
  args.norm = OutputNorm::kRmsNorm;
  args.out = view(5, {M, d});
  args.sum = view(6, {M, d});
  return args;
}

GatedOutputBackwardArgs backward_args(std::int64_t M, std::int64_t d_in, std::int64_t d) {
  GatedOutputBackwardArgs args;
  args.o = view(1, {M, d_in});
  args.gate = view(2, {M, d_in});
  args.weight = view(3, {d, d_in});
  args.d_out = view(4, {M, d});
  return args;
}

std::string chosen(const GatedOutputForwardArgs& args, bool batch_invariant = false,
                   std::string_view forced = "") {
  return chosen_variant(&gated_output_forward_workspace_bytes, make_problem(args), batch_invariant,
                        forced);
}

ForwardPlan plan_of(const char* variant, const GatedOutputForwardArgs& args) {
  for (const ForwardVariant& one : forward_variants()) {
    if (one.name == std::string("gated_output_forward.sm90.bf16.") + variant) {
      return plan_forward(one, make_problem(args));
    }
  }
  throw std::runtime_error(variant);
}

TEST(GatedOutputVariants, ByTheNumberOfRows) {
  EXPECT_THAT(chosen(forward_args(1, 4096, 4096)), EndsWith(".m8"));
  EXPECT_THAT(chosen(forward_args(16, 4096, 4096)), EndsWith(".m16"));
  EXPECT_THAT(chosen(forward_args(64, 4096, 4096)), EndsWith(".m64"));
  EXPECT_THAT(chosen(forward_args(100, 4096, 4096)), EndsWith(".n64.split"));
  EXPECT_THAT(chosen(forward_args(160, 5120, 5120)), EndsWith(".m160"));
  EXPECT_THAT(chosen(forward_args(200, 5120, 5120)), EndsWith(".m96"));
  EXPECT_THAT(chosen(forward_args(512, 4096, 4096)), EndsWith(".n128"));
  EXPECT_THAT(chosen(forward_args(2048, 8192, 2048)), EndsWith(".rows_gated"));
}

TEST(GatedOutputVariants, WholeRowsGateWhereTheyCan) {
  GatedOutputForwardArgs args = forward_args(2048, 2048, 2048);
  EXPECT_THAT(chosen(args), EndsWith(".rows_gated"));
  args.gate_activation = OutputGate::kSilu;
  EXPECT_THAT(chosen(args), EndsWith(".n128"));
  args = forward_args(2048, 2048, 2048);
  args.gated = view(10, {2048, 2048});
  EXPECT_THAT(chosen(args), EndsWith(".n128"));
  EXPECT_THAT(chosen(forward_args(2048, 2044, 2048)), EndsWith(".n128"));
  args = forward_args(2048, 2048, 2048);
  args.gate.reset();
  EXPECT_THAT(chosen(args), EndsWith(".n128"));  // a pass over so few rows is quicker
  args = forward_args(8192, 4096, 4096);
  args.gate.reset();
  EXPECT_THAT(chosen(args), EndsWith(".rows"));
  args = forward_args(2048, 2048, 2048);
  args.norm = OutputNorm::kNone;
  args.sum.reset();
  EXPECT_THAT(chosen(args), EndsWith(".n128"));
  EXPECT_THAT(chosen(forward_args(2048, 2048, 8192)), Not(EndsWith(".rows")));
}

TEST(GatedOutputVariants, WholeRowsNeedAMultiprocessorPerTile) {
  GatedOutputForwardArgs args = forward_args(2048, 2048, 2048);
  args.gate_activation = OutputGate::kSilu;
  const GatedOutputForwardProblem problem = make_problem(args);
  DeviceProperties slice = kDevice;
  for (const ForwardVariant& one : forward_variants()) {
    if (!one.name.ends_with("bf16.rows")) continue;
    slice.multiprocessors = 8;
    EXPECT_LT(predict_forward(one, problem, slice), 1e6);
    slice.multiprocessors = 7;
    EXPECT_GT(predict_forward(one, problem, slice), 1e6);
  }
}

TEST(GatedOutputVariants, OneForAnyNumberOfRowsWhereBatchesMustNotMatter) {
  for (const std::int64_t M : {1, 64, 512, 4096}) {
    EXPECT_THAT(chosen(forward_args(M, 2048, 2048), true), EndsWith(".n128")) << M;
  }
}

TEST(GatedOutputPlan, HoldsTheGatedRowsOrCopies) {
  GatedOutputForwardArgs args = forward_args(100, 64, 48);
  EXPECT_EQ(plan_of("n128", args).workspace_bytes, 100u * 64 * 2);
  args.gated = view(10, {100, 64});
  EXPECT_EQ(plan_of("n128", args).workspace_bytes, 0u);
  args = forward_args(100, 64, 48);
  args.gate.reset();
  EXPECT_EQ(plan_of("n128", args).workspace_bytes, 0u);
  // Rows of 60 and 44 elements are no multiples of 16 bytes.
  args = forward_args(100, 60, 44);
  const ForwardPlan plan = plan_of("n128", args);
  EXPECT_FALSE(plan.copies_a);
  EXPECT_TRUE(plan.copies_weight && plan.copies_residual);
  EXPECT_GE(plan.workspace_bytes, ((100u + 44) * 64 + 100 * 48) * 2);
  EXPECT_FALSE(plan_of("m64", forward_args(64, 60, 44)).copies_residual);
}

/// Statistics of each row's two tiles, and counts of each 64 rows; a only where it is made first.
TEST(GatedOutputPlan, HoldsWhatWholeRowsExchange) {
  const GatedOutputForwardArgs args = forward_args(1000, 64, 512);
  EXPECT_EQ(plan_of("rows_gated", args).workspace_bytes, 16128u + 256);  // multiples of 256
  EXPECT_FALSE(plan_of("rows_gated", args).gates);
  EXPECT_GE(plan_of("rows", args).workspace_bytes, 1000u * (2 * 8 + 64 * 2));
}

TEST(GatedOutputPlan, TakesOnlyWhatTheWantedGradientsNeed) {
  GatedOutputBackwardArgs args = backward_args(1024, 2048, 1024);
  const auto bytes = [&] {
    return gated_output_backward_workspace_bytes(make_problem(args), kDevice, {});
  };
  constexpr std::size_t kRowsIn = std::size_t{1024} * 2048 * 2;  // of a, or of its gradient
  constexpr std::size_t kRows = std::size_t{1024} * 1024 * 2;
  args.d_residual = view(10, {1024, 1024});
  EXPECT_EQ(bytes(), 0u);
  args.d_o = view(11, {1024, 2048});
  EXPECT_EQ(bytes(), kRowsIn);
  args.d_weight = view(12, {1024, 2048});
  EXPECT_GE(bytes(), 2 * kRowsIn);
  args.gated = view(13, {1024, 2048});
  EXPECT_LT(bytes(), 2 * kRowsIn);
  args.d_weight.reset();
  args.d_residual.reset();
  args.norm = OutputNorm::kRmsNorm;
  args.sum = view(14, {1024, 1024});
  args.rstd = view(15, {1024}, DType::kFloat32);
  EXPECT_EQ(bytes(), kRowsIn + kRows);
}

}  // namespace
}  // namespace tandem::cuda::gated_output
