// The host side of gla on CUDA: which variant a problem gets and why others are passed over,
// workspace sizes, and the plan behind every tensor map. Needs no GPU.
#include "cuda/gla/forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/gla/backward.h"
#include "cuda/gla/common/segments.h"
#include "cuda/gla/state.h"
#include "cuda/gla/state/plan.h"
#include "cuda/gla/walk/plan.h"
#include "ops/gla.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gla {
namespace {

using ::testing::HasSubstr;

/// Contiguous tensors at an aligned address that nothing reads.
GlaForwardArgs contiguous_args(std::int64_t B, std::int64_t T, int HQ, int H, int K, int V,
                               DType dtype = DType::kBFloat16) {
  const auto view = [&](std::uintptr_t address, const Dims& shape) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), dtype, shape, Device::cuda());
  };
  GlaForwardArgs args;
  args.q = view(1ull << 44, {B, T, HQ, K});
  args.k = view(2ull << 44, {B, T, HQ, K});
  args.v = view(3ull << 44, {B, T, H, V});
  args.o = view(4ull << 44, {B, T, H, V});
  return args;
}

std::string first_accepting(const GlaForwardArgs& args) {
  const GlaForwardProblem problem = make_problem(args);
  for (const ForwardVariant& variant : forward_variants()) {
    if (reason_against(variant, problem, plan_tiles(problem)).empty()) return variant.name;
  }
  return "none";
}

/// Why the variant of this name refuses.
std::string reason_of(const std::string& name, const GlaForwardArgs& args) {
  const GlaForwardProblem problem = make_problem(args);
  for (const ForwardVariant& variant : forward_variants()) {
    if (variant.name == name) return reason_against(variant, problem, plan_tiles(problem));
  }
  throw std::out_of_range(name);
}

TEST(GlaVariants, SmallestTileThatHoldsTheWidthsIsFirst) {
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 64, 64)),
            "gla_forward.sm90.bf16.c64_k64_v64");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 64, 72)),
            "gla_forward.sm90.bf16.c64_k64_v128");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 96, 64)),
            "gla_forward.sm90.bf16.c64_k128_v64");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 128, 128, DType::kFloat16)),
            "gla_forward.sm90.fp16.c64_k128_v128");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 64, 256)),
            "gla_forward.sm90.bf16.c64_k64_v128");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 136, 256)),
            "gla_forward.sm90.bf16.c64_k256_v64");
}

TEST(GlaVariants, WhatTmaCannotReadGoesToGather) {
  GlaForwardArgs args = contiguous_args(2, 256, 4, 4, 64, 64);
  args.k.data = static_cast<char*>(args.k.data) + 2;
  EXPECT_EQ(first_accepting(args), "gla_forward.sm90.bf16.c64_k64_v64.gather");
  const std::string tma = "gla_forward.sm90.bf16.c64_k64_v64";
  EXPECT_EQ(reason_of(tma, args), "k does not start at a multiple of 16 bytes");

  args = contiguous_args(2, 256, 4, 4, 20, 64);
  EXPECT_EQ(reason_of(tma, args),
            "q has a head stride of 40 bytes, not a positive multiple of 16 below 2^40");
  args = contiguous_args(2, 256, 4, 4, 64, 64);
  args.v.strides[0] = 0;  // one sequence's values for the whole batch
  EXPECT_EQ(reason_of(tma, args),
            "v has a batch stride of 0 bytes, not a positive multiple of 16 below 2^40");
  EXPECT_EQ(first_accepting(args), "gla_forward.sm90.bf16.c64_k64_v64.gather");
  EXPECT_EQ(first_accepting(contiguous_args(2, 0, 4, 4, 64, 64)),
            "gla_forward.sm90.bf16.c64_k64_v64.gather");
}

TEST(GlaVariants, ReasonsNameTheLimit) {
  const auto reason = [&](const GlaForwardArgs& args) {
    return reason_of("gla_forward.sm90.bf16.c64_k64_v64", args);
  };
  EXPECT_EQ(reason(contiguous_args(1, 1, 1, 1, 64, 64, DType::kFloat16)), "takes bf16, got fp16");
  EXPECT_EQ(reason(contiguous_args(1, 1, 1, 1, 128, 64)), "takes K <= 64, got 128");
  EXPECT_EQ(reason(contiguous_args(1, 1, 1, 1, 64, 96)), "takes V <= 64, got 96");
  EXPECT_EQ(reason(contiguous_args(1, std::int64_t{1} << 31, 1, 1, 64, 64)),
            "takes T < 2^31 - 64, got 2147483648");
  EXPECT_EQ(
      reason_of("gla_forward.sm90.bf16.c64_k128_v128", contiguous_args(1, 1, 1, 1, 128, 1 << 24)),
      "takes K * V < 2^31, got 2147483648");
}

TEST(GlaVariants, StateTakesAnyWidthInTiles) {
  const auto first = [](int K, int V) {
    GlaStateForwardProblem problem;
    static_cast<GlaRecurrence&>(problem) = make_problem(contiguous_args(2, 256, 4, 4, K, V));
    for (const StateVariant& variant : state_forward_variants()) {
      if (reason_against(variant, problem, plan_tiles(problem)).empty()) return variant.name;
    }
    return std::string("none");
  };
  EXPECT_EQ(first(64, 64), "gla_state_forward.sm90.bf16.c64_k64_v64");
  EXPECT_EQ(first(64, 72), "gla_state_forward.sm90.bf16.c64_k64_v128");
  EXPECT_EQ(first(256, 512), "gla_state_forward.sm90.bf16.c64_k128_v128");
}

struct Decision {
  const char* what;
  std::int64_t B, T;
  int H, K;
  int segments;
};

/// Into how many segments a sequence is cut on an H200: few heads are, full machines are not.
TEST(GlaPlan, DecisionsOnAnH200) {
  const Decision decisions[] = {
      {"b4h32_t4096_d64", 4, 4096, 32, 64, 1},
      {"b4h32_t1024_d64", 4, 1024, 32, 64, 1},
      {"train_b8h16_t4096_d128", 8, 4096, 16, 128, 1},
      {"long_b4h32_t16384_d64", 4, 16384, 32, 64, 1},
      {"few_b1h16_t8192_d128", 1, 8192, 16, 128, 8},
      {"few_b1h8_t32768_d128", 1, 32768, 8, 128, 15},
      {"few_b1h32_t2048_d128", 1, 2048, 32, 128, 4},
      {"fla_b1h96_t8192_d128", 1, 8192, 96, 128, 1},
      {"fla_b2h16_t16384_d128", 2, 16384, 16, 128, 4},
      {"fla_b4h16_t2048_d128", 4, 2048, 16, 128, 1},
      {"fla_b4h64_t4096_d128", 4, 4096, 64, 128, 1},
      {"fla_b8h32_t2048_d256", 8, 2048, 32, 256, 1},
      {"fla_b8h8_t1024_d64", 8, 1024, 8, 64, 1},
      {"one head, short", 1, 512, 1, 128, 1},
      {"one head, long", 1, 1 << 20, 1, 64, 104},
      {"one token", 1, 1, 1, 128, 1},
      {"no token", 1, 0, 1, 128, 1},
  };
  for (const Decision& one : decisions) {
    const GlaForwardProblem problem =
        make_problem(contiguous_args(one.B, one.T, one.H, one.H, one.K, one.K));
    const int value_dim = one.K == 256 ? 64 : one.K;
    const WalkPlan plan = plan_forward(problem, one.K, value_dim, DeviceProperties::h200());
    EXPECT_EQ(plan.segments, one.segments) << one.what;
    EXPECT_EQ(plan.items, one.B * one.H * (one.K / value_dim) * plan.segments) << one.what;
    EXPECT_LE(plan.blocks, 132u) << one.what;
    EXPECT_EQ(plan.workspace_bytes == 0, plan.segments == 1) << one.what;
  }
}

/// The search of pairs against all of them, by definition.
TEST(GlaPlan, PairsAreTheQuickestThatFit) {
  const DeviceModel& model = device_model(DeviceProperties::h200());
  int paired = 0;
  for (const std::int64_t items : {1, 2, 3, 8, 16, 33, 66, 67, 132}) {
    for (const std::int64_t chunks : {0, 1, 2, 7, 32, 128, 513, 2048}) {
      SplitShape a{items, chunks, 128, 128, 132, &model.gla_walk, true};
      SplitShape b{items, chunks, 64, 128, 132, &model.gla_walk};
      for (const double factor : {0.5, 1.0, 2.0}) {
        const double time_to_beat = factor * (predicted_time(a, 1) + predicted_time(b, 1));
        PairSegments quickest;
        double time = time_to_beat;
        const std::int64_t most = std::max<std::int64_t>(chunks, 1);
        for (int i = 1; i <= most && i * items <= 132; ++i) {
          for (int j = 1; j <= most && (i + j) * items <= 132; ++j) {
            const double pair = predicted_pair_time(a, i, b, j);
            if (pair >= time) continue;
            quickest = {i, j};
            time = pair;
          }
        }
        const PairSegments found = choose_pair_segments(a, b, time_to_beat);
        EXPECT_EQ(found.a, quickest.a) << items << ' ' << chunks << ' ' << factor;
        EXPECT_EQ(found.b, quickest.b) << items << ' ' << chunks << ' ' << factor;
        paired += found.a > 0;
      }
    }
  }
  EXPECT_GT(paired, 20);
}

TEST(GlaPlan, SwitchForcesTheSegments) {
  const GlaForwardProblem problem = make_problem(contiguous_args(1, 200, 2, 2, 64, 64));
  const auto segments = [&](const char* forced) {
    setenv("TANDEM_GLA_SEGMENTS", forced, 1);
    const int got = plan_forward(problem, 64, 64, DeviceProperties::h200()).segments;
    unsetenv("TANDEM_GLA_SEGMENTS");
    return got;
  };
  EXPECT_EQ(segments("3"), 3);
  EXPECT_EQ(segments("100"), 4);  // one per chunk
  EXPECT_EQ(segments(""), 1);
  for (const char* bad : {"0", "-1", "2x", "1025"}) {
    setenv("TANDEM_GLA_SEGMENTS", bad, 1);
    try {
      plan_forward(problem, 64, 64, DeviceProperties::h200());
      FAIL() << bad << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "[environment] TANDEM_GLA_SEGMENTS must be a number from 1 to 1024, got " +
                    std::string(bad));
    }
    unsetenv("TANDEM_GLA_SEGMENTS");
  }
}

TEST(GlaPlan, SegmentsCoverTheSequence) {
  for (const int chunks : {1, 2, 16, 32, 33, 128, 129, 512, 1 << 14}) {
    for (const int segments : {1, 2, 3, 4, 7, 8, 16, 100, 132, 1024}) {
      if (segments > chunks) continue;
      EXPECT_EQ(segment_begin_chunk(chunks, segments, 0), 0);
      EXPECT_EQ(segment_begin_chunk(chunks, segments, segments), chunks);
      int longest = 0;
      for (int i = 0; i < segments; ++i) {
        const int length =
            segment_begin_chunk(chunks, segments, i + 1) - segment_begin_chunk(chunks, segments, i);
        EXPECT_GT(length, 0) << chunks << " in " << segments << ", segment " << i;
        longest = std::max(longest, length);
      }
      EXPECT_LE(longest, 2 * (chunks / segments) + 2) << chunks << " in " << segments;
    }
  }
}

/// All gradients of a contiguous call with a decay per token.
GlaBackwardArgs backward_args(std::int64_t B, std::int64_t T, int HQ, int H, int K, int V) {
  const GlaForwardArgs forward = contiguous_args(B, T, HQ, H, K, V);
  const auto moved = [](TensorView view, std::uintptr_t address) {
    view.data = reinterpret_cast<void*>(address);
    return view;
  };
  const auto decay = [&](std::uintptr_t address) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), DType::kFloat32, {B, T, H},
                                  Device::cuda());
  };
  GlaBackwardArgs args;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.d_o = forward.o;
  args.log_decay = decay(5ull << 44);
  args.dq = moved(forward.q, 6ull << 44);
  args.dk = moved(forward.k, 7ull << 44);
  args.dv = moved(forward.v, 8ull << 44);
  args.d_log_decay = decay(9ull << 44);
  return args;
}

TEST(GlaPlan, SlowerMemoryMakesWalksSlower) {
  const GlaForwardProblem problem = make_problem(contiguous_args(4, 4096, 32, 32, 64, 64));
  DeviceProperties device = DeviceProperties::h200();
  const double time = predicted_time(split_shape(problem, 64, 64, device), 1);
  const double by_chunks =
      predicted_chunks_time(make_problem(backward_args(4, 4096, 32, 32, 64, 64)), device);
  device.name = "NVIDIA H100 80GB HBM3";
  EXPECT_GT(predicted_time(split_shape(problem, 64, 64, device), 1), 1.2 * time);
  EXPECT_GT(predicted_chunks_time(make_problem(backward_args(4, 4096, 32, 32, 64, 64)), device),
            1.2 * by_chunks);
}

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
  EXPECT_EQ(reason("gla_backward.sm90.bf16.c64", backward_args(1, 1, 1, 1, 64, 264)),
            "takes V <= 256, got 264");
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
}

TEST(GlaBackwardPlan, AChoiceHasItsOwnWorkspace) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardProblem narrow = make_problem(backward_args(8, 1024, 8, 8, 64, 64));
  EXPECT_EQ(gla_backward_workspace_bytes(narrow, device),
            plan_chunk_backward(narrow, device).workspace_bytes);
  for (const GlaBackwardArgs& args :
       {backward_args(1, 32768, 4, 4, 64, 64), backward_args(8, 1024, 8, 8, 128, 128)}) {
    const GlaBackwardProblem walks = make_problem(args);
    EXPECT_EQ(gla_backward_workspace_bytes(walks, device),
              plan_backward(walks, device).workspace_bytes);
  }
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
  for (const auto& [K, V] : {std::pair{64, 64}, {128, 128}, {256, 256}, {64, 256}, {128, 64}}) {
    const BackwardPlan plan =
        plan_backward(make_problem(backward_args(B, T, H, H, K, V)), DeviceProperties::h200());
    EXPECT_LE(plan.workspace_bytes - plan.states, B * T * H * std::max(K, V) * 2) << K << " " << V;
  }
}

/// Packed sequences are cut nowhere, whatever their number; so must a batch-invariant batch's be.
TEST(GlaBatchInvariance, NothingIsCut) {
  const DeviceProperties device = DeviceProperties::h200();
  setenv("TANDEM_GLA_SEGMENTS", "3", 1);
  for (const std::int64_t B : {1, 2, 64}) {
    for (const std::int64_t T : {1, 64, 1000, 1 << 20}) {
      const GlaForwardProblem problem = make_problem(contiguous_args(B, T, 2, 2, 64, 64));
      EXPECT_EQ(plan_forward(problem, 64, 64, device, true).segments, 1) << B << " " << T;
      GlaStateForwardProblem state;
      static_cast<GlaRecurrence&>(state) = problem;
      EXPECT_EQ(plan_state(state, 64, 64, device, true).segments, 1) << B << " " << T;
    }
  }
  unsetenv("TANDEM_GLA_SEGMENTS");
}

TEST(GlaBatchInvariance, TheWalksOfABackwardDependOnOneSequenceAlone) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto walks = [&](const GlaBackwardArgs& args) {
    std::string text;
    for (const BackwardWalk& walk : plan_backward(make_problem(args), device, true).walks) {
      text += std::to_string(static_cast<int>(walk.gradient)) + " in " +
              std::to_string(walk.plan.segments) + ", ";
    }
    return text;
  };
  for (const auto& [K, V] : {std::pair{64, 64}, {128, 128}, {64, 128}, {192, 192}}) {
    GlaBackwardArgs packed = backward_args(1, 5000, 2, 2, K, V);
    packed.cu_seqlens = TensorView::contiguous(reinterpret_cast<void*>(11ull << 44), DType::kInt32,
                                               {4}, Device::cuda());
    const std::string of_packed = walks(packed);
    for (const std::int64_t B : {1, 2, 64}) {
      for (const std::int64_t T : {1, 256, 8192}) {
        EXPECT_EQ(walks(backward_args(B, T, 2, 2, K, V)), of_packed) << B << " " << T << " " << K;
      }
    }
  }
}

TEST(GlaBatchInvariance, WhatDependsOnTheBatchIsRefused) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardArgs args = backward_args(8, 1024, 8, 8, 64, 64);
  tandem::gla_backward_workspace_bytes(args, device);
  EXPECT_EQ(last_variant(), "gla_backward.sm90.bf16.c64.chunks");
  EXPECT_EQ(tandem::gla_backward_workspace_bytes(args, device, true),
            plan_backward(make_problem(args), device, true).workspace_bytes);
  EXPECT_EQ(last_variant(), "gla_backward.sm90.bf16.c64");
  setenv("TANDEM_BATCH_INVARIANT", "1", 1);
  tandem::gla_backward_workspace_bytes(args, device);
  EXPECT_EQ(last_variant(), "gla_backward.sm90.bf16.c64");
  setenv("TANDEM_VARIANT", "gla_backward.sm90.bf16.c64.chunks", 1);
  try {
    tandem::gla_backward_workspace_bytes(args, device);
    FAIL() << "the choice by B and T was made";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("c64.chunks: is not batch-invariant"));
  }
  unsetenv("TANDEM_VARIANT");
  setenv("TANDEM_BATCH_INVARIANT", "yes", 1);
  try {
    tandem::gla_backward_workspace_bytes(args, device);
    FAIL() << "a value that is none was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[environment] TANDEM_BATCH_INVARIANT must be 0 or 1, got yes");
  }
  unsetenv("TANDEM_BATCH_INVARIANT");
}

TEST(GlaVariants, WorkspaceIsAskedForAnyDevice) {
  const GlaForwardArgs args = contiguous_args(2, 256, 4, 4, 128, 128);
  EXPECT_EQ(tandem::gla_forward_workspace_bytes(args, DeviceProperties::h200()), 0u);
  try {
    tandem::gla_forward_workspace_bytes(contiguous_args(1, 64, 1, 1, 512, 64),
                                        DeviceProperties::h200());
    FAIL() << "K = 512 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[gla_forward] no variant on NVIDIA H200"));
    EXPECT_THAT(error.what(), HasSubstr("c64_k128_v128: takes K <= 128, got 512"));
  }
  DeviceProperties a100{DeviceType::kCuda, "NVIDIA A100", 8, 0, 108, 166912, 41943040};
  try {
    tandem::gla_forward_workspace_bytes(args, a100);
    FAIL() << "an A100 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs compute capability 9.0, NVIDIA A100 has 8.0"));
  }
  for (const VariantInfo& info : tandem::variants(a100)) EXPECT_NE(info.unavailable, "");
  for (const VariantInfo& info : tandem::variants(DeviceProperties::h200())) {
    EXPECT_EQ(info.unavailable, "") << info.name;
  }
}

TEST(GlaVariants, SwitchForcesOneVariant) {
  const GlaForwardArgs args = contiguous_args(2, 256, 4, 4, 64, 64);
  ASSERT_EQ(setenv("TANDEM_VARIANT", "gla_forward.sm90.fp16.c64_k64_v64", 1), 0);
  try {
    tandem::gla_forward_workspace_bytes(args, DeviceProperties::h200());
    FAIL() << "an fp16 variant was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("fp16.c64_k64_v64: takes fp16, got bf16"));
    EXPECT_THAT(error.what(), HasSubstr("TANDEM_VARIANT asks for"));
  }
  unsetenv("TANDEM_VARIANT");
}

TEST(GlaVariants, TensorMapPlans) {
  GlaForwardArgs args = contiguous_args(2, 300, 2, 4, 96, 128);
  // q is the first part of a packed [B,T,2*HQ*K] buffer.
  args.q.strides = {std::int64_t{300} * 384, 384, 96, 1};
  const TilePlans tiles = plan_tiles(make_problem(args));
  ASSERT_EQ(tiles.plans.size(), 4u);
  const TensorMapPlan& q = tiles.plans[0];
  const TensorMapPlan& o = tiles.plans[3];
  EXPECT_EQ(tiles.problem, "");
  EXPECT_EQ(q.base, args.q.data);
  EXPECT_EQ(q.extents, (std::array<std::uint64_t, 4>{96, 2, 300, 2}));
  EXPECT_EQ(q.stride_bytes, (std::array<std::uint64_t, 3>{192, 768, 300 * 768}));
  EXPECT_EQ(q.box, (std::array<std::uint32_t, 4>{64, 1, 64, 1}));
  EXPECT_EQ(o.extents, (std::array<std::uint64_t, 4>{128, 4, 300, 2}));
  EXPECT_EQ(o.stride_bytes, (std::array<std::uint64_t, 3>{256, 1024, 300 * 1024}));
}

/// Heads of 100 columns in a buffer that has room for 104: a store would clear the other four.
TEST(GlaVariants, OutputsAreWholeRowsOf16Bytes) {
  GlaForwardArgs args = contiguous_args(2, 300, 2, 2, 100, 100);
  for (TensorView* tensor : {&args.q, &args.k, &args.v, &args.o}) {
    tensor->strides = {std::int64_t{300} * 208, 208, 104, 1};
  }
  EXPECT_EQ(plan_tiles(make_problem(args), false).problem, "");
  EXPECT_EQ(plan_tiles(make_problem(args)).problem,
            "o has rows of 200 bytes, which a store would fill up to a multiple of 16");
}

TEST(GlaVariants, NoDeviceIsSaidByTheCall) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a device";
  try {
    gla_forward(make_problem(contiguous_args(1, 64, 1, 1, 64, 64)), Context{});
    FAIL() << "ran without a device";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:0: no CUDA device: "));
  }
}

}  // namespace
}  // namespace tandem::cuda::gla
