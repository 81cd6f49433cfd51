// The host side of gla's backward on CUDA: by chunks. Needs no GPU.
#include <gtest/gtest.h>

#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

TEST(GlaBackwardVariants, ByChunksWhatFitsOneCta) {
  constexpr const char* kName = "gla_backward.sm90.bf16.c64.chunks";
  GlaBackwardArgs args = backward_args(2, 256, 4, 4, 64, 64);
  EXPECT_EQ(reason(kName, args), "");
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.chunks", args), "takes fp16, got bf16");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 72, 64)), "takes K <= 64, got 72");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 64, 128)), "takes V <= 64, got 128");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 2, 4, 64, 64)), "takes H = HQ, got 4 and 2");
  args.dk.reset();
  EXPECT_EQ(reason(kName, args), "makes dq, dk and dv, of which not all are wanted");
}

TEST(GlaBackwardVariants, ByChunksInReverseWhatByChunks) {
  constexpr const char* kName = "gla_backward.sm90.bf16.c64.chunks_reverse";
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 64, 64)), "");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 72, 64)), "takes K <= 64, got 72");
}

TEST(GlaBackwardPlan, ByChunksWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto by_chunks = [&](const GlaBackwardArgs& args) {
    return plan_chunk_backward(make_problem(args), device, false).time;
  };
  // Measured (docs/ops/gla_backward.log.md): 73, 134, 73 and 134 us.
  EXPECT_NEAR(by_chunks(backward_args(1, 8192, 16, 16, 64, 64)), 71.0, 7.0);
  EXPECT_NEAR(by_chunks(backward_args(1, 32768, 8, 8, 64, 64)), 129.0, 13.0);
  EXPECT_NEAR(by_chunks(backward_args(1, 32768, 4, 4, 64, 64)), 72.0, 7.0);
  EXPECT_NEAR(by_chunks(backward_args(1, 131072, 2, 2, 64, 64)), 135.0, 13.0);
  EXPECT_TRUE(goes(".chunks", backward_args(1, 8192, 16, 16, 64, 64)));
  EXPECT_TRUE(goes(".chunks", backward_args(1, 32768, 8, 8, 64, 64)));
  EXPECT_TRUE(goes(".chunks", backward_args(1, 131072, 2, 2, 64, 64)));
  // Two launches, where walks are four.
  EXPECT_TRUE(goes(".chunks_reverse", backward_args(1, 64, 4, 4, 64, 64)));
}

TEST(GlaBackwardPlan, ByChunksInReverseWhereHeadsFillTheMachine) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto in_reverse = [&](const GlaBackwardArgs& args) {
    return plan_chunk_backward(make_problem(args), device, true).time;
  };
  // Measured (docs/ops/gla_backward.log.md): 53, 189, 311 and 645 us; by chunks 61, 231, 230 and
  // 618.
  EXPECT_NEAR(in_reverse(backward_args(4, 1024, 32, 32, 64, 64)), 53.0, 5.0);
  EXPECT_NEAR(in_reverse(backward_args(4, 4096, 32, 32, 64, 64)), 189.0, 15.0);
  EXPECT_NEAR(in_reverse(backward_args(1, 8192, 64, 64, 64, 64)), 311.0, 20.0);
  EXPECT_TRUE(goes(".chunks_reverse", backward_args(4, 1024, 32, 32, 64, 64)));
  EXPECT_TRUE(goes(".chunks_reverse", backward_args(4, 4096, 32, 32, 64, 64)));
  EXPECT_TRUE(goes(".chunks", backward_args(1, 8192, 64, 64, 64, 64)));
  EXPECT_TRUE(goes(".chunks", backward_args(1, 8192, 160, 160, 64, 64)));
  // 32.5 and 43.4 us on an H200, 39.9 and 45.7 on an H100.
  const GlaBackwardProblem few = make_problem(backward_args(8, 1024, 8, 8, 64, 64));
  for (const char* name : {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}) {
    DeviceProperties one = device;
    one.name = name;
    EXPECT_LT(plan_chunk_backward(few, one, false).time, plan_chunk_backward(few, one, true).time);
  }
}

TEST(GlaBackwardPlan, WorkspaceByChunksIsTwoStatesPerPair) {
  GlaBackwardArgs args = backward_args(2, 130, 4, 4, 64, 64);
  EXPECT_EQ(
      plan_chunk_backward(make_problem(args), DeviceProperties::h200(), false).workspace_bytes,
      2 * 2 * 4 * 2 * 8192u);
  EXPECT_EQ(plan_chunk_backward(make_problem(args), DeviceProperties::h200(), true).workspace_bytes,
            2 * 4 * 2 * 8192u);
}

TEST(GlaBackwardPlan, CutsSequencesOfFewHeadsWhoseInitialGradientNobodyWants) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto plan = [&](const GlaBackwardArgs& args) {
    return plan_chunk_backward(make_problem(args), device, false);
  };
  const auto segments = [&](const GlaBackwardArgs& args) { return plan(args).segments; };
  GlaBackwardArgs args = backward_args(8, 1024, 8, 8, 64, 64);
  EXPECT_EQ(segments(args), 2);
  EXPECT_EQ(plan(args).segment_pairs, 4);
  EXPECT_EQ(plan(args).workspace_bytes, 64 * 8 * (2 * 8192u + 16));
  args.d_initial_state = TensorView::contiguous(reinterpret_cast<void*>(10ull << 44),
                                                DType::kFloat32, {8, 8, 64, 64}, Device::cuda());
  EXPECT_EQ(segments(args), 1);
  EXPECT_EQ(segments(backward_args(8, 1024, 9, 9, 64, 64)), 1);
  EXPECT_EQ(segments(backward_args(8, 384, 8, 8, 64, 64)), 1);
  EXPECT_GE(segments(backward_args(1, 32768, 8, 8, 64, 64)), 8);
  for (const std::int64_t heads : {1, 2, 3, 8, 32, 66}) {
    for (const std::int64_t T : {1, 64, 500, 4100, 30000, 131072}) {
      const ChunkBackwardPlan one = plan(backward_args(1, T, heads, heads, 64, 64));
      EXPECT_LT((one.segments - 1) * one.segment_pairs, one.pairs) << heads << ' ' << T;
      EXPECT_GE(one.segments * one.segment_pairs, one.pairs) << heads << ' ' << T;
      EXPECT_LE(one.segments * 2 * heads, 2 * device.multiprocessors) << heads << ' ' << T;
    }
  }
}

}  // namespace
}  // namespace tandem::cuda::gla
