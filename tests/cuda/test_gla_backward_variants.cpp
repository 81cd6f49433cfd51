// The host side of gla's backward on CUDA: which variant a problem gets. Needs no GPU.
#include <gtest/gtest.h>

#include "cuda/gla/wide/plan.h"
#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

TEST(GlaBackwardVariants, OnePerDtypeAndWayToCopy) {
  GlaBackwardArgs args = backward_args(2, 256, 2, 4, 128, 64);
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64", args), "");
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64", args), "takes fp16, got bf16");
  args.dk->data = static_cast<char*>(args.dk->data) + 2;
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64", args),
            "dk does not start at a multiple of 16 bytes");
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64.gather", args), "");
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64", backward_args(1, 1, 1, 1, 512, 64)),
            "takes K <= 256, got 512");
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64", backward_args(1, 1, 1, 1, 64, 512)), "");
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64", backward_args(1, 1, 1, 1, 64, 520)),
            "takes V <= 512, got 520");
}

TEST(GlaBackwardPlan, AChoiceHasItsOwnWorkspace) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardProblem narrow = make_problem(backward_args(8, 1024, 8, 8, 64, 64));
  EXPECT_EQ(gla_backward_workspace_bytes(narrow, device),
            plan_chunk_backward(narrow, device, false).workspace_bytes);
  const GlaBackwardProblem walks = make_problem(backward_args(8, 64, 8, 8, 256, 256));
  EXPECT_EQ(gla_backward_workspace_bytes(walks, device),
            plan_backward(walks, device).workspace_bytes);
  const GlaBackwardProblem wide = make_problem(backward_args(1, 1024, 8, 8, 256, 512));
  EXPECT_EQ(gla_backward_workspace_bytes(wide, device),
            plan_wide_backward(wide, device, std::size_t{1} << 40).workspace_bytes);
}

}  // namespace
}  // namespace tandem::cuda::gla
