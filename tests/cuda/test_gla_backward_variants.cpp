// The host side of gla's backward on CUDA: which variant a problem gets, which walks a call makes
// and how they are cut. Needs no GPU.
#include "cuda/gla/backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/gla/common/segments.h"
#include "cuda/gla/walk/plan.h"
#include "cuda/runtime/plan.h"
#include "ops/gla.h"
#include "tandem/tandem.h"
#include "tests/cuda/gla_args.h"

namespace tandem::cuda::gla {
namespace {

using ::testing::HasSubstr;

std::string reason(const char* name, const GlaBackwardArgs& args) {
  const GlaBackwardProblem problem = make_problem(args);
  for (const BackwardVariant& variant : backward_variants()) {
    if (variant.name == name) return reason_against(variant, problem, plan_tiles(problem));
  }
  throw std::out_of_range(name);
}

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

TEST(GlaBackwardVariants, BySpansWhatIsWide) {
  constexpr const char* kName = "gla_backward.sm90.bf16.c64.wide";
  GlaBackwardArgs args = backward_args(2, 256, 4, 4, 256, 512);
  EXPECT_EQ(reason(kName, args), "");
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.wide", args), "takes fp16, got bf16");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 136, 8)), "");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 8, 136)), "");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 128, 128)),
            "takes K or V above 128, got 128 and 128");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 264, 512)), "takes K <= 256, got 264");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 256, 520)), "takes V <= 512, got 520");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 2, 4, 256, 256)), "takes H = HQ, got 4 and 2");
  // Where sums for d_log_decay would cancel too loosely for fp16.
  const auto final_state = TensorView::contiguous(
      reinterpret_cast<void*>(10ull << 44), DType::kFloat32, {2, 4, 256, 512}, Device::cuda());
  args.d_final_state = final_state;
  EXPECT_EQ(reason(kName, args), "");
  GlaBackwardArgs halves = args;
  for (TensorView* view :
       {&halves.q, &halves.k, &halves.v, &halves.d_o, &*halves.dq, &*halves.dk, &*halves.dv}) {
    view->dtype = DType::kFloat16;
  }
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.wide", halves),
            "takes fp16 and d_final_state without d_log_decay");
  halves.d_log_decay.reset();
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.wide", halves), "");
  args.dk.reset();
  EXPECT_EQ(reason(kName, args), "makes dq, dk and dv, of which not all are wanted");
}

TEST(GlaBackwardPlan, BySpansWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto by_spans = [&](const GlaBackwardArgs& args) {
    return plan_wide_backward(make_problem(args), device, std::size_t{1} << 40).time;
  };
  const auto chosen = [&](const GlaBackwardArgs& args) {
    const GlaBackwardProblem problem = make_problem(args);
    return gla_backward_workspace_bytes(problem, device) !=
           plan_backward(problem, device).workspace_bytes;
  };
  // Measured (docs/ops/gla_backward.log.md), microseconds by spans and by walks.
  struct Measured {
    GlaBackwardArgs args;
    double spans, walks;
  };
  const Measured table[] = {
      {backward_args(8, 2048, 4, 4, 256, 512), 371, 660},
      {backward_args(1, 8192, 4, 4, 256, 512), 230, 486},
      {backward_args(1, 2048, 4, 4, 256, 512), 73, 190},
      {backward_args(4, 2048, 12, 12, 192, 384), 444, 1140},
      {backward_args(1, 2048, 8, 8, 256, 256), 80, 141},
      {backward_args(2, 4096, 16, 16, 256, 256), 474, 501},
      {backward_args(4, 4096, 16, 16, 192, 192), 754, 944},
      {backward_args(4, 4096, 16, 16, 256, 128), 633, 549},
      {backward_args(8, 2048, 4, 4, 128, 256), 165, 216},
      {backward_args(1, 8192, 4, 4, 128, 256), 147, 168},
      {backward_args(1, 2048, 4, 4, 128, 256), 48, 74},
      {backward_args(8, 2048, 8, 8, 128, 256), 302, 286},
      {backward_args(3, 4096, 16, 16, 128, 256), 478, 496},
      {backward_args(4, 4096, 16, 16, 128, 256), 629, 546},
      {backward_args(4, 2048, 8, 8, 128, 512), 270, 490},
      {backward_args(4, 4096, 8, 8, 128, 192), 284, 361},
      {backward_args(8, 4096, 16, 16, 128, 192), 1060, 993},
      {backward_args(8, 2048, 8, 8, 64, 256), 296, 252},
  };
  for (const auto& [args, spans, walks] : table) {
    const GlaForwardProblem f = make_problem(args).forward;
    const std::string what = "B" + std::to_string(f.B) + " T" + std::to_string(f.T) + " K" +
                             std::to_string(f.K) + " V" + std::to_string(f.V);
    EXPECT_EQ(chosen(args), spans < walks) << what;
    if (chosen(args)) EXPECT_NEAR(by_spans(args), spans, 0.15 * spans) << what;
  }
  EXPECT_FALSE(chosen(backward_args(8, 2048, 32, 32, 256, 256)));
}

TEST(GlaBackwardPlan, HeadsInTurnWhereStatesHaveNoRoom) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardProblem problem = make_problem(backward_args(8, 2048, 32, 32, 256, 256));
  const std::size_t all = plan_wide_backward(problem, device, std::size_t{1} << 40).workspace_bytes;
  EXPECT_EQ(plan_wide_backward(problem, device, all).slab_heads, 256);
  for (const std::size_t parts : {2, 3, 16, 1000}) {
    const WideBackwardPlan plan = plan_wide_backward(problem, device, all / parts);
    EXPECT_GE(plan.slab_heads, 1);
    EXPECT_TRUE(plan.workspace_bytes <= all / parts || plan.slab_heads == 1) << parts;
  }
}

TEST(GlaBackwardPlan, InReverseWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto in_reverse = [&](const GlaBackwardArgs& args) {
    return plan_reverse_backward(make_problem(args), device).time;
  };
  const auto chosen = [&](const GlaBackwardArgs& args) {
    const GlaBackwardProblem problem = make_problem(args);
    return gla_backward_workspace_bytes(problem, device) ==
           plan_reverse_backward(problem, device).workspace_bytes;
  };
  // Measured (docs/ops/gla_backward.log.md): 427, 338, 298 and 56 us; by walks 533, 483, 358
  // and 94.
  EXPECT_NEAR(in_reverse(backward_args(4, 4096, 32, 32, 128, 128)), 427.0, 20.0);
  EXPECT_NEAR(in_reverse(backward_args(1, 2048, 160, 160, 128, 128)), 338.0, 20.0);
  EXPECT_NEAR(in_reverse(backward_args(1, 4096, 64, 64, 128, 128)), 298.0, 30.0);
  EXPECT_NEAR(in_reverse(backward_args(8, 512, 16, 16, 128, 128)), 56.0, 5.0);
  EXPECT_TRUE(chosen(backward_args(4, 4096, 32, 32, 128, 128)));
  EXPECT_TRUE(chosen(backward_args(1, 2048, 160, 160, 128, 128)));
  EXPECT_TRUE(chosen(backward_args(1, 4096, 64, 64, 128, 128)));
  EXPECT_TRUE(chosen(backward_args(8, 512, 16, 16, 128, 128)));
}

TEST(GlaBackwardPlan, CutsReverseWalksOfFewHeads) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto plan = [&](const GlaBackwardArgs& args) {
    return plan_reverse_backward(make_problem(args), device);
  };
  EXPECT_EQ(plan(backward_args(4, 4096, 32, 32, 128, 128)).segments, 1);
  EXPECT_EQ(plan(backward_args(1, 8192, 16, 16, 128, 128)).segments, 8);
  EXPECT_EQ(plan(backward_args(1, 2048, 32, 32, 128, 128)).segments, 4);
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

TEST(GlaBackwardPlan, ByChunksWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto by_chunks = [&](const GlaBackwardArgs& args) {
    return predicted_chunks_time(make_problem(args), device);
  };
  const auto chosen = [&](const GlaBackwardArgs& args) {
    const GlaBackwardProblem problem = make_problem(args);
    return gla_backward_workspace_bytes(problem, device) ==
           plan_chunk_backward(problem, device).workspace_bytes;
  };
  // Measured (docs/ops/gla_backward.md): 78, 212 and 180 us; by walks 153, 251 and 161.
  EXPECT_NEAR(by_chunks(backward_args(1, 8192, 16, 16, 64, 64)), 78.0, 8.0);
  EXPECT_NEAR(by_chunks(backward_args(1, 32768, 8, 8, 64, 64)), 212.0, 21.0);
  EXPECT_NEAR(by_chunks(backward_args(1, 32768, 4, 4, 64, 64)), 180.0, 18.0);
  EXPECT_TRUE(chosen(backward_args(1, 8192, 16, 16, 64, 64)));
  EXPECT_TRUE(chosen(backward_args(1, 32768, 8, 8, 64, 64)));
  EXPECT_FALSE(chosen(backward_args(1, 32768, 4, 4, 64, 64)));
  EXPECT_TRUE(chosen(backward_args(1, 64, 4, 4, 64, 64)));  // two launches, where walks are four
}

TEST(GlaBackwardPlan, WalksSideBySideTakeTimeForTheDecaysToo) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto plan_of = [&](bool decays) {
    GlaBackwardArgs args = backward_args(1, 64, 4, 4, 64, 64);
    if (!decays) args.d_log_decay.reset();
    return plan_backward(make_problem(args), device);
  };
  const BackwardPlan with = plan_of(true), without = plan_of(false);
  EXPECT_TRUE(with.walks[1].beside_walk);
  EXPECT_GT(predicted_walks_time(with, device),
            predicted_walks_time(without, device) + device_model(device).gla_backward.decays);
}

TEST(GlaBackwardPlan, WalksOfHeadsThatShareTakeTimeForTheirSums) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto by_walks = [&](const GlaBackwardArgs& args) {
    return predicted_walks_time(plan_backward(make_problem(args), device), device);
  };
  // Measured: 1170 us.
  EXPECT_NEAR(by_walks(backward_args(4, 4096, 1, 32, 256, 64)), 1170.0, 120.0);
}

TEST(GlaBackwardPlan, ByGroupsWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  DeviceProperties h100 = device;
  h100.name = "NVIDIA H100 80GB HBM3";
  const auto by_groups = [&](const GlaBackwardArgs& args) {
    return plan_group_backward(make_problem(args), h100).time;
  };
  const auto chosen = [&](const GlaBackwardArgs& args) {
    const GlaBackwardProblem problem = make_problem(args);
    return gla_backward_workspace_bytes(problem, device) ==
           plan_group_backward(problem, device).workspace_bytes;
  };
  // Measured on an H100 (docs/ops/gla_backward.log.md): 1460, 2430, 228, 400, 782 and 597 us.
  EXPECT_NEAR(by_groups(backward_args(8, 4096, 1, 80, 128, 64)), 1460.0, 120.0);
  EXPECT_NEAR(by_groups(backward_args(4, 8192, 8, 128, 128, 64)), 2430.0, 200.0);
  EXPECT_NEAR(by_groups(backward_args(1, 2048, 1, 80, 128, 64)), 228.0, 45.0);
  EXPECT_NEAR(by_groups(backward_args(1, 8192, 1, 80, 128, 64)), 400.0, 40.0);
  EXPECT_NEAR(by_groups(backward_args(4, 4096, 2, 112, 64, 64)), 782.0, 65.0);
  EXPECT_NEAR(by_groups(backward_args(4, 4096, 1, 32, 256, 64)), 597.0, 50.0);
  EXPECT_TRUE(chosen(backward_args(8, 4096, 1, 80, 128, 64)));
  EXPECT_TRUE(chosen(backward_args(4, 8192, 8, 128, 128, 64)));
  EXPECT_TRUE(chosen(backward_args(4, 4096, 2, 112, 64, 64)));
  EXPECT_TRUE(chosen(backward_args(4, 4096, 1, 32, 256, 64)));
  EXPECT_TRUE(chosen(backward_args(4, 1100, 2, 40, 256, 64)));
  EXPECT_FALSE(chosen(backward_args(1, 256, 1, 80, 128, 64)));    // 4 chunks, 80 heads in turn each
  EXPECT_FALSE(chosen(backward_args(4, 4096, 32, 32, 128, 64)));  // one reverse walk
}

TEST(GlaBackwardPlan, WorkspaceByGroupsIsTwoStatesPerPair) {
  const auto bytes = [](const GlaBackwardArgs& args) {
    return plan_group_backward(make_problem(args), DeviceProperties::h200()).workspace_bytes;
  };
  EXPECT_EQ(bytes(backward_args(2, 130, 2, 8, 128, 64)), 2 * 2 * 8 * 2 * 16384u);
  EXPECT_EQ(bytes(backward_args(2, 130, 2, 8, 128, 72)), 2 * 2 * 8 * 2 * 2 * 16384u);
  EXPECT_EQ(bytes(backward_args(2, 130, 2, 8, 240, 24)),
            2 * 2 * 8 * 2 * 2 * 16384u);  // of each of two parts
  GlaBackwardArgs args = backward_args(2, 130, 2, 8, 64, 64);
  EXPECT_EQ(bytes(args), 2 * 2 * 8 * 2 * 8192u);
  args.log_decay->shape = args.d_log_decay->shape = {8};
  args.log_decay->strides = args.d_log_decay->strides = {1};
  EXPECT_EQ(bytes(args), 2 * 2 * 8 * 2 * 8192u + 256);  // a sum per chunk and head
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
    std::string chosen;
    CallOptions options;
    options.chosen = &chosen;
    gla_backward_workspace_bytes(make_problem(args), device, options);
    return chosen;
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

TEST(GlaBackwardPlan, AChoiceHasItsOwnWorkspace) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardProblem narrow = make_problem(backward_args(8, 1024, 8, 8, 64, 64));
  EXPECT_EQ(gla_backward_workspace_bytes(narrow, device),
            plan_chunk_backward(narrow, device).workspace_bytes);
  const GlaBackwardProblem walks = make_problem(backward_args(8, 64, 8, 8, 256, 256));
  EXPECT_EQ(gla_backward_workspace_bytes(walks, device),
            plan_backward(walks, device).workspace_bytes);
  const GlaBackwardProblem wide = make_problem(backward_args(1, 1024, 8, 8, 256, 512));
  EXPECT_EQ(gla_backward_workspace_bytes(wide, device),
            plan_wide_backward(wide, device, std::size_t{1} << 40).workspace_bytes);
}

TEST(GlaBackwardPlan, WorkspaceByChunksIsTwoStatesPerPair) {
  GlaBackwardArgs args = backward_args(2, 130, 4, 4, 64, 64);
  EXPECT_EQ(plan_chunk_backward(make_problem(args), DeviceProperties::h200()).workspace_bytes,
            2 * 2 * 4 * 2 * 8192u);
}

TEST(GlaBackwardPlan, CutsWalksOfFewHeadsWhoseEndNobodyWants) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto cut = [&](const GlaBackwardArgs& args) {
    return plan_chunk_backward(make_problem(args), device).cut;
  };
  GlaBackwardArgs args = backward_args(8, 1024, 8, 8, 64, 64);
  EXPECT_EQ(cut(args), 4);
  EXPECT_EQ(plan_chunk_backward(make_problem(args), device).workspace_bytes,
            64 * 8 * (2 * 8192u + 16));
  args.d_initial_state = TensorView::contiguous(reinterpret_cast<void*>(10ull << 44),
                                                DType::kFloat32, {8, 8, 64, 64}, Device::cuda());
  EXPECT_EQ(cut(args), 0);
  EXPECT_EQ(cut(backward_args(8, 1024, 9, 9, 64, 64)), 0);
  EXPECT_EQ(cut(backward_args(8, 384, 8, 8, 64, 64)), 0);
}

TEST(GlaBackwardPlan, WalksAreThoseThatGradientsNeed) {
  using Gradient = BackwardWalk::Gradient;
  const auto walks = [](const GlaBackwardArgs& args) {
    std::vector<Gradient> gradients;
    for (const BackwardWalk& walk :
         plan_backward(make_problem(args), DeviceProperties::h200()).walks) {
      gradients.push_back(walk.gradient);
    }
    return gradients;
  };
  const GlaBackwardArgs all = backward_args(1, 256, 2, 2, 64, 64);
  EXPECT_THAT(walks(all), testing::ElementsAre(Gradient::kV, Gradient::kQ, Gradient::kK));
  EXPECT_THAT(walks(backward_args(4, 256, 32, 32, 64, 128)),
              testing::ElementsAre(Gradient::kQ, Gradient::kK, Gradient::kV));
  GlaBackwardArgs one = all;
  one.dk = one.dv = one.d_log_decay = std::nullopt;
  EXPECT_THAT(walks(one), testing::ElementsAre(Gradient::kQ));
  one = all;
  one.dq = one.dk = one.dv = std::nullopt;  // the decay's needs q . dq and k . dk
  EXPECT_THAT(walks(one), testing::ElementsAre(Gradient::kQ, Gradient::kK));
  one.d_log_decay = std::nullopt;
  EXPECT_THAT(walks(one), testing::IsEmpty());
  one.d_initial_state = TensorView::contiguous(reinterpret_cast<void*>(10ull << 44),
                                               DType::kFloat32, {1, 2, 64, 64}, Device::cuda());
  EXPECT_THAT(walks(one), testing::ElementsAre(Gradient::kK));
}

TEST(GlaBackwardPlan, ManyHeadsHaveOneWalkForDkAndDv) {
  using Gradient = BackwardWalk::Gradient;
  const auto joined = [](const GlaBackwardArgs& args) {
    const BackwardPlan plan = plan_backward(make_problem(args), DeviceProperties::h200());
    const BackwardWalk& last = plan.walks.back();
    if (last.gradient != Gradient::kKV) return false;
    EXPECT_EQ(last.value.data, args.dv->data);
    EXPECT_EQ(last.problem.o.data, args.dk->data);
    EXPECT_EQ(last.launch.split, nullptr);
    return true;
  };
  EXPECT_TRUE(joined(backward_args(4, 256, 32, 32, 64, 64)));
  EXPECT_TRUE(joined(backward_args(4, 256, 8, 32, 128, 96)));
  EXPECT_FALSE(joined(backward_args(4, 256, 32, 32, 128, 64)));   // tiles that are not square
  EXPECT_FALSE(joined(backward_args(4, 256, 32, 32, 192, 192)));  // wider than a tile
  EXPECT_FALSE(joined(backward_args(1, 256, 32, 32, 128, 128)));  // dv runs beside dq
  GlaBackwardArgs args = backward_args(4, 256, 32, 32, 128, 128);
  args.dq = args.d_log_decay = std::nullopt;
  EXPECT_TRUE(joined(args));
  args.dk = std::nullopt;
  EXPECT_FALSE(joined(args));
}

TEST(GlaBackwardPlan, WideValuesAreTwoPartsOfTheWalksForDqAndDk) {
  using Gradient = BackwardWalk::Gradient;
  constexpr int H = 8, K = 256, V = 328, kFirst = 168;
  GlaBackwardArgs args = backward_args(4, 256, H, H, K, V);
  const auto state = [&](std::uintptr_t address) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), DType::kFloat32, {4, H, K, V},
                                  Device::cuda());
  };
  args.initial_state = state(10ull << 44);
  args.d_final_state = state(11ull << 44);
  args.d_initial_state = state(12ull << 44);
  const GlaBackwardProblem problem = make_problem(args);
  const BackwardPlan plan = plan_backward(problem, DeviceProperties::h200());
  EXPECT_EQ(plan.parts, 2);
  EXPECT_EQ(plan.panels, 2 * 4);
  EXPECT_TRUE(plan.decay_beside_walk);
  std::vector<std::pair<Gradient, int>> order;
  for (const BackwardWalk& walk : plan.walks) {
    SCOPED_TRACE(order.size());
    order.emplace_back(walk.gradient, walk.part);
    const int first = walk.part * kFirst, columns = walk.part == 0 ? kFirst : V - kFirst;
    const bool of_value = walk.gradient == Gradient::kV;
    const GlaForwardProblem& own = walk.problem;
    EXPECT_EQ(own.K, of_value ? K : columns);
    EXPECT_EQ(own.V, of_value ? V : K);
    EXPECT_EQ(walk.state_strides.value, of_value ? 1 : V);
    EXPECT_EQ(walk.state_strides.key, of_value ? V : 1);
    EXPECT_EQ(walk.state_strides.head, K * V);
    EXPECT_EQ(walk.plan.shape.key_dim, 256);
    EXPECT_EQ(walk.summed, !of_value);
    EXPECT_FALSE(walk.beside_walk);
    const float* begins_with =
        walk.is_reverse() ? problem.d_final_state : problem.forward.initial_state;
    EXPECT_EQ(own.initial_state, begins_with + first);
    EXPECT_EQ(own.final_state, of_value ? problem.d_initial_state : nullptr);
    const auto moved = [&](const StridedTensor& tensor) {
      return static_cast<void*>(static_cast<char*>(tensor.data) + 2 * first);
    };
    if (of_value) {
      EXPECT_EQ(own.v.data, problem.d_o.data);
      EXPECT_EQ(own.o.data, problem.dv.data);
    } else {
      EXPECT_EQ(own.q.data, moved(walk.is_reverse() ? problem.forward.v : problem.d_o));
      EXPECT_EQ(own.k.data, moved(walk.is_reverse() ? problem.d_o : problem.forward.v));
      EXPECT_EQ(own.o.data, walk.is_reverse() ? problem.dk.data : problem.dq.data);
    }
  }
  using testing::Pair;
  EXPECT_THAT(order, testing::ElementsAre(Pair(Gradient::kQ, 0), Pair(Gradient::kQ, 1),
                                          Pair(Gradient::kK, 0), Pair(Gradient::kK, 1),
                                          Pair(Gradient::kV, 0)));
  args.dv = std::nullopt;  // the last walks from the end are then those for dk
  const BackwardPlan without = plan_backward(make_problem(args), DeviceProperties::h200());
  ASSERT_EQ(without.walks.size(), 4u);
  EXPECT_EQ(without.walks[1].problem.final_state, nullptr);
  EXPECT_EQ(without.walks[2].problem.final_state, problem.d_initial_state);
  EXPECT_EQ(without.walks[3].problem.final_state, problem.d_initial_state + kFirst);
  EXPECT_FALSE(without.decay_beside_walk);
}

TEST(GlaBackwardPlan, PartsOfWideValuesBeginWhereTmaCan) {
  for (int V = 257; V <= 512; ++V) {
    const BackwardPlan plan =
        plan_backward(make_problem(backward_args(1, 64, 1, 1, 64, V)), DeviceProperties::h200());
    ASSERT_EQ(plan.walks.size(), 5u) << V;
    const int first = plan.walks[0].problem.K, rest = plan.walks[1].problem.K;
    EXPECT_EQ(first + rest, V);
    EXPECT_EQ(first % 8, 0) << V;
    EXPECT_LE(first, 256) << V;
    EXPECT_LE(rest, first) << V;
    EXPECT_GT(rest, 0) << V;
  }
}

TEST(GlaBackwardPlan, WideValuesTakeTheirSumsBesideWhatNarrowOnesTake) {
  constexpr std::int64_t B = 4, T = 2048, H = 8, K = 256, V = 512, kTokens = B * T * H;
  GlaBackwardArgs args = backward_args(B, T, H, H, K, V);
  const auto plan = [&] { return plan_backward(make_problem(args), DeviceProperties::h200()); };
  // States, row sums and flows of 8 panels, and dq or dk in fp32: 2160 bytes per token and head.
  EXPECT_EQ(plan().workspace_bytes, kTokens * (2 * V + 3 * 4 * 8 + 8 * 512 / 256 + 4 * K));
  args.d_log_decay = std::nullopt;
  EXPECT_EQ(plan().workspace_bytes, kTokens * 4 * K);  // 2 * V, as v
  args.dq = args.dk = std::nullopt;
  EXPECT_EQ(plan().workspace_bytes, 0u);
}

TEST(GlaBackwardPlan, WideValuesTakeMoreThanTwiceTheTime) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto time = [&](int V) {
    return predicted_walks_time(
        plan_backward(make_problem(backward_args(4, 2048, 8, 8, 256, V)), device), device);
  };
  EXPECT_GT(time(512), 2.0 * time(256));
  EXPECT_LT(time(512), 3.0 * time(256));
}

TEST(GlaBackwardPlan, TheDecaysKernelRunsBesideTheWalkForDvOnly) {
  const auto beside = [](const GlaBackwardArgs& args) {
    return plan_backward(make_problem(args), DeviceProperties::h200()).decay_beside_walk;
  };
  GlaBackwardArgs args = backward_args(4, 256, 32, 32, 64, 128);
  EXPECT_TRUE(beside(args));
  EXPECT_FALSE(beside(backward_args(4, 256, 32, 32, 64, 64)));  // dv comes with dk
  EXPECT_FALSE(beside(backward_args(1, 256, 2, 2, 64, 64)));    // dv runs beside dq
  args.dv = std::nullopt;  // the kernel before it is then the walk for dk, which it reads
  EXPECT_FALSE(beside(args));
  EXPECT_FALSE(beside(backward_args(0, 256, 2, 2, 64, 64)));  // no walk at all
}

TEST(GlaBackwardPlan, FewHeadsPairTheWalksForDqAndDv) {
  using Segments = std::vector<int>;  // of dv, dq, dk
  const auto pair = [](std::int64_t B, std::int64_t T, int H, int K) {
    const BackwardPlan plan =
        plan_backward(make_problem(backward_args(B, T, H, H, K, K)), DeviceProperties::h200());
    Segments segments;
    if (!plan.walks[1].beside_walk) return segments;
    for (const BackwardWalk& walk : plan.walks) segments.push_back(walk.plan.segments);
    const WalkPlan& value = plan.walks[0].plan;
    const WalkPlan& query = plan.walks[1].plan;
    EXPECT_EQ(plan.walks[0].gradient, BackwardWalk::Gradient::kV);
    EXPECT_LE(value.items + query.items, 132);
    if (value.split() && query.split()) {  // what they exchange is not the same memory
      EXPECT_GE(query.states, value.factors);
      EXPECT_GE(query.ready, value.ready + 4 * value.flags);
    }
    return segments;
  };
  EXPECT_EQ(pair(4, 2048, 16, 128), (Segments{1, 1, 2}));  // fla_b4h16: 64 + 64 CTAs
  EXPECT_EQ(pair(8, 1024, 8, 64), (Segments{1, 1, 2}));    // fla_b8h8
  EXPECT_EQ(pair(1, 2048, 32, 128), (Segments{1, 3, 4}));  // few_b1h32
  EXPECT_EQ(pair(1, 8192, 16, 128), (Segments{3, 5, 8}));  // few_b1h16
  EXPECT_EQ(pair(4, 4096, 32, 64), Segments{});            // one walk fills the device
}

TEST(GlaBackwardPlan, KeptStatesTakeNoMoreThanTheWiderOfQAndV) {
  constexpr std::int64_t B = 2, T = 4096, H = 4;
  for (const auto& [K, V] : {std::pair{64, 64},
                             {128, 128},
                             {256, 256},
                             {64, 256},
                             {128, 64},
                             {64, 512},
                             {128, 512},
                             {256, 512}}) {
    const BackwardPlan plan =
        plan_backward(make_problem(backward_args(B, T, H, H, K, V)), DeviceProperties::h200());
    EXPECT_LE(plan.workspace_bytes - plan.states, B * T * H * std::max(K, V) * 2) << K << " " << V;
  }
}

}  // namespace
}  // namespace tandem::cuda::gla
