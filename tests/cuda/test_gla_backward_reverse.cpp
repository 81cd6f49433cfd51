// The host side of gla's backward on CUDA: in one reverse walk. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

TEST(GlaBackwardVariants, InReverseWhatFitsOneCta) {
  constexpr const char* kName = "gla_backward.sm90.bf16.c64.reverse";
  GlaBackwardArgs args = backward_args(2, 256, 4, 4, 128, 64);
  EXPECT_EQ(reason(kName, args), "");
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.reverse", args), "takes fp16, got bf16");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 136, 64)), "takes K <= 128, got 136");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 64, 136)), "takes V <= 128, got 136");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 112, 64)),
            "takes K or V from 120 on, got 112 and 64");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 2, 4, 128, 128)), "takes H = HQ, got 4 and 2");
  args.dv.reset();
  EXPECT_EQ(reason(kName, args), "makes dq, dk and dv, of which not all are wanted");
}

TEST(GlaBackwardPlan, InReverseWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto in_reverse = [&](const GlaBackwardArgs& args) {
    return plan_reverse_backward(make_problem(args), device).time;
  };
  // Measured (docs/ops/gla_backward.log.md): 427, 338, 245 and 56 us; by walks 533, 483, 358
  // and 94.
  EXPECT_NEAR(in_reverse(backward_args(4, 4096, 32, 32, 128, 128)), 427.0, 20.0);
  EXPECT_NEAR(in_reverse(backward_args(1, 2048, 160, 160, 128, 128)), 338.0, 20.0);
  EXPECT_NEAR(in_reverse(backward_args(1, 4096, 64, 64, 128, 128)), 245.0, 20.0);
  EXPECT_NEAR(in_reverse(backward_args(8, 512, 16, 16, 128, 128)), 56.0, 5.0);
  EXPECT_TRUE(goes(".reverse", backward_args(4, 4096, 32, 32, 128, 128)));
  EXPECT_TRUE(goes(".reverse", backward_args(1, 2048, 160, 160, 128, 128)));
  EXPECT_TRUE(goes(".reverse", backward_args(1, 4096, 64, 64, 128, 128)));
  EXPECT_TRUE(goes(".reverse", backward_args(8, 512, 16, 16, 128, 128)));
}

TEST(GlaBackwardPlan, CutsReverseWalksOfFewHeads) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto plan = [&](const GlaBackwardArgs& args) {
    return plan_reverse_backward(make_problem(args), device);
  };
  EXPECT_EQ(plan(backward_args(4, 4096, 32, 32, 128, 128)).segments, 1);
  EXPECT_EQ(plan(backward_args(1, 8192, 16, 16, 128, 128)).segments, 8);
  EXPECT_EQ(plan(backward_args(1, 2048, 32, 32, 128, 128)).segments, 4);
  EXPECT_TRUE(plan(backward_args(1, 2048, 32, 32, 128, 128)).looks_back);
  EXPECT_FALSE(plan(backward_args(1, 8192, 16, 16, 128, 128)).looks_back);
  GlaBackwardArgs remembers = backward_args(1, 2048, 32, 32, 128, 128);
  remembers.log_decay.reset();
  remembers.d_log_decay.reset();
  EXPECT_FALSE(plan(remembers).looks_back);
  // No more memory than 1.1 times the wider of q and v, and 16 MB.
  for (const int heads : {1, 2, 8, 24, 40, 64, 100, 140}) {
    for (const std::int64_t T : {0, 1, 63, 640, 4100, 16384, 100000}) {
      const ReversePlan one = plan(backward_args(1, T, heads, heads, 128, 128));
      const std::int64_t q = 256 * T * heads;
      EXPECT_LE(static_cast<std::int64_t>(one.workspace_bytes),
                q + q / 10 + (16 << 20) + 32768 * heads)
          << heads << ' ' << T;
      EXPECT_LT((one.segments - 1) * one.segment_chunks, std::max(one.chunks, 1));
      EXPECT_GE(one.segments * one.segment_chunks, one.chunks);
    }
  }
}

TEST(GlaBackwardPlan, WorkspaceInReverseIsAStatePerPair) {
  const GlaBackwardArgs args = backward_args(2, 130, 4, 4, 128, 128);
  EXPECT_EQ(plan_reverse_backward(make_problem(args), DeviceProperties::h200()).workspace_bytes,
            2 * 4 * 2 * 32768u);
}

}  // namespace
}  // namespace tandem::cuda::gla
