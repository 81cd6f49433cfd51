// The host side of gla's backward on CUDA: by groups of heads. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/gla/common/state_walks.h"
#include "cuda/runtime/plan.h"
#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

TEST(GlaBackwardVariants, ByGroupsWhatFitsOneCta) {
  constexpr const char* kName = "gla_backward.sm90.bf16.c64.groups";
  GlaBackwardArgs args = backward_args(2, 256, 1, 8, 128, 64);
  EXPECT_EQ(reason(kName, args), "");
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.groups", args), "takes fp16, got bf16");
  for (const int K : {8, 64, 72, 128, 136, 256}) {
    EXPECT_EQ(reason(kName, backward_args(2, 256, 8, 8, K, 64)), "") << K;
  }
  EXPECT_EQ(reason(kName, backward_args(2, 256, 1, 8, 128, 128)), "");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 1, 8, 264, 64)), "takes K <= 256, got 264");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 1, 8, 128, 136)), "takes V <= 128, got 136");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 1, 8, 136, 72)), "takes V <= 64, got 72");
  EXPECT_EQ(reason(kName, backward_args(1, (std::int64_t{1} << 31) - 128, 1, 72, 64, 8)),
            "takes at most 2^31 - 1 chunks of 64 tokens of heads");
  args.dq.reset();
  EXPECT_EQ(reason(kName, args), "makes dq, dk and dv, of which not all are wanted");
}

TEST(GlaBackwardPlan, EveryWalkForStatesIsOfOneCta) {
  for (int count = 1; count <= 100; ++count) {
    for (const int of_cta : {1, kManyStateWalks}) {
      const int ctas = state_walk_ctas(count, of_cta);
      EXPECT_EQ(first_state_walk(0, count, of_cta), 0);
      EXPECT_EQ(first_state_walk(ctas, count, of_cta), count);
      for (int cta = 0; cta < ctas; ++cta) {
        const int walks =
            first_state_walk(cta + 1, count, of_cta) - first_state_walk(cta, count, of_cta);
        EXPECT_GE(walks, 1) << count;
        EXPECT_LE(walks, of_cta) << count;
      }
    }
  }
}

TEST(GlaBackwardPlan, ByGroupsWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  DeviceProperties h100 = device;
  h100.name = "NVIDIA H100 80GB HBM3";
  const auto by_groups = [&](const GlaBackwardArgs& args) {
    return plan_group_backward(make_problem(args), h100).time;
  };
  // Measured on an H100 (docs/ops/gla_backward.log.md): 1460, 2430, 400, 782 and 597 us.
  EXPECT_NEAR(by_groups(backward_args(8, 4096, 1, 80, 128, 64)), 1460.0, 120.0);
  EXPECT_NEAR(by_groups(backward_args(4, 8192, 8, 128, 128, 64)), 2430.0, 200.0);
  EXPECT_NEAR(by_groups(backward_args(1, 8192, 1, 80, 128, 64)), 400.0, 40.0);
  EXPECT_NEAR(by_groups(backward_args(4, 4096, 2, 112, 64, 64)), 782.0, 65.0);
  EXPECT_NEAR(by_groups(backward_args(4, 4096, 1, 32, 256, 64)), 597.0, 50.0);
  // Groups in parts, on an H200: 87.9, 137 and 260 us.
  const auto in_parts = [&](std::int64_t T, int H) {
    return plan_group_backward(make_problem(backward_args(1, T, 1, H, 128, 64)), device).time;
  };
  EXPECT_NEAR(in_parts(2048, 48), 87.9, 16.0);
  EXPECT_NEAR(in_parts(2048, 128), 137.0, 24.0);
  EXPECT_NEAR(in_parts(4096, 128), 260.0, 26.0);
  EXPECT_TRUE(goes(".groups", backward_args(1, 2048, 1, 48, 128, 64)));
  EXPECT_TRUE(goes(".groups", backward_args(8, 4096, 1, 80, 128, 64)));
  EXPECT_TRUE(goes(".groups", backward_args(4, 8192, 8, 128, 128, 64)));
  EXPECT_TRUE(goes(".groups", backward_args(4, 4096, 2, 112, 64, 64)));
  EXPECT_TRUE(goes(".groups", backward_args(4, 4096, 1, 32, 256, 64)));
  EXPECT_TRUE(goes(".groups", backward_args(4, 1100, 2, 40, 256, 64)));
  EXPECT_FALSE(goes(".groups", backward_args(4, 4096, 32, 32, 128, 64)));  // one reverse walk
}

TEST(GlaBackwardPlan, WorkspaceByGroupsIsTwoStatesPerPair) {
  const auto bytes = [](const GlaBackwardArgs& args) {
    return plan_group_backward(make_problem(args), DeviceProperties::h200()).workspace_bytes;
  };
  EXPECT_EQ(bytes(backward_args(2, 130, 2, 8, 128, 64)), 2 * 2 * 8 * 2 * 16384u);
  EXPECT_EQ(bytes(backward_args(2, 130, 2, 4, 128, 72)), 2 * 2 * 4 * 2 * 2 * 16384u);
  EXPECT_EQ(bytes(backward_args(2, 130, 8, 8, 240, 24)),
            2 * 2 * 8 * 2 * 2 * 16384u);  // of each of two parts
  GlaBackwardArgs args = backward_args(2, 130, 2, 8, 64, 64);
  EXPECT_EQ(bytes(args), 2 * 2 * 8 * 2 * 8192u);
  args.log_decay->shape = args.d_log_decay->shape = {8};
  args.log_decay->strides = args.d_log_decay->strides = {1};
  EXPECT_EQ(bytes(args), 2 * 2 * 8 * 2 * 8192u + 256);  // a sum per chunk and head
}

TEST(GlaBackwardPlan, HeadsThatShareFewChunksGoInParts) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto plan = [&](std::int64_t T, int HQ, int H, int K) {
    return plan_group_backward(make_problem(backward_args(2, T, HQ, H, K, 64)), device);
  };
  EXPECT_EQ(plan(130, 1, 48, 128).splits, 8);
  EXPECT_EQ(plan(8192, 1, 48, 128).splits, 1);  // an item for each multiprocessor
  EXPECT_EQ(plan(130, 48, 48, 128).splits, 1);
  EXPECT_EQ(plan(130, 1, 47, 128).splits, 1);
  EXPECT_EQ(plan(130, 1, 48, 256).splits, 8);
  const std::size_t states = 2 * 2 * 48 * 2 * 16384u;
  EXPECT_EQ(plan(130, 1, 48, 128).workspace_bytes, states + 2 * 4 * 2 * 130 * 8 * 128);
}

TEST(GlaBackwardPlan, ByGroupsTakesNoMoreThanOneTenthOverTheWiderOfQAndV) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto room = [](std::int64_t tokens, int width) {
    return tokens * width * 2 * 11 / 10 + (16 << 20);
  };
  constexpr std::int64_t B = 4, T = 4096, H = 32;
  for (const int K : {64, 72, 128, 136, 256}) {
    for (const int V : {64, K > 128 ? 40 : 128}) {
      const GlaBackwardProblem problem = make_problem(backward_args(B, T, 2, H, K, V));
      const GroupBackwardPlan plan = plan_group_backward(problem, device);
      EXPECT_LE(plan.workspace_bytes, room(B * T * H, std::max(K, V))) << K << ' ' << V;
      EXPECT_GE(ceil_div(B * 2, plan.slab_groups) * ceil_div(plan.segments, plan.slab_segments),
                K == 128 && V == 128 ? 2 : 1);
    }
  }
  // One group's segments have room in turn.
  const GroupBackwardPlan one =
      plan_group_backward(make_problem(backward_args(1, 65536, 1, 8, 128, 128)), device);
  EXPECT_LE(one.workspace_bytes, room(65536 * 8, 128));
  EXPECT_LT(one.slab_segments, one.segments);
}

TEST(GlaBackwardPlan, PackedSequencesOfSharedHeadsGoByGroups) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto variant = [&](int K, bool constant) {
    GlaBackwardArgs args = backward_args(1, 32768, 2, 16, K, K);
    args.cu_seqlens = TensorView::contiguous(reinterpret_cast<void*>(20ull << 44), DType::kInt32,
                                             {12}, Device::cuda());
    if (constant) {
      args.log_decay->shape = args.d_log_decay->shape = {16};
      args.log_decay->strides = args.d_log_decay->strides = {1};
    }
    return chosen(args);
  };
  EXPECT_EQ(variant(64, false), "gla_backward.sm90.bf16.c64.groups");
  EXPECT_EQ(variant(128, false), "gla_backward.sm90.bf16.c64.groups");
  // Tokens of no sequence would be in that sum.
  EXPECT_EQ(variant(128, true), "gla_backward.sm90.bf16.c64");
}

TEST(GlaBackwardPlan, ByGroupsCutsSequencesOfFewHeads) {
  const DeviceProperties device = DeviceProperties::h200();
  GlaBackwardArgs args = backward_args(1, 16384, 1, 8, 64, 64);
  const GroupBackwardPlan cut = plan_group_backward(make_problem(args), device);
  EXPECT_GT(cut.segments, 1);
  EXPECT_EQ(cut.segment_chunks % 2, 0);
  EXPECT_LT((cut.segments - 1) * cut.segment_chunks, cut.chunks);
  EXPECT_GE(cut.segments * cut.segment_chunks, cut.chunks);
  EXPECT_EQ(
      plan_group_backward(make_problem(backward_args(8, 4096, 1, 80, 128, 64)), device).segments,
      1);
  // States are read 16 bytes at a time.
  args.initial_state = TensorView::contiguous(reinterpret_cast<void*>((10ull << 44) + 4),
                                              DType::kFloat32, {1, 8, 64, 64}, Device::cuda());
  EXPECT_EQ(plan_group_backward(make_problem(args), device).segments, 1);
}

}  // namespace
}  // namespace tandem::cuda::gla
