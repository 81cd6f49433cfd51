// The host side of gla on CUDA: which variant a problem gets and why others are passed over,
// workspace sizes, and the plan behind every tensor map. Needs no GPU.
#include "cuda/gla/forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "cuda/gla/backward.h"
#include "cuda/gla/common/segments.h"
#include "cuda/gla/state.h"
#include "cuda/gla/state/plan.h"
#include "cuda/gla/walk/plan.h"
#include "ops/gla.h"
#include "tandem/tandem.h"
#include "tests/cuda/gla_args.h"

namespace tandem::cuda::gla {
namespace {

using ::testing::HasSubstr;

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
            "gla_forward.sm90.bf16.c64_k256_v128");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 136, 64)),
            "gla_forward.sm90.bf16.c64_k256_v64");
}

/// Which variant an H200 runs.
std::string chosen(const GlaForwardArgs& args) {
  std::string name;
  gla_forward_workspace_bytes(make_problem(args), DeviceProperties::h200(), {.chosen = &name});
  return name;
}

TEST(GlaVariants, TwoHeadsTogetherWhereThatIsFaster) {
  const std::string pairs = "gla_forward.sm90.bf16.c64_k128_v64.pairs";
  const std::string apart = "gla_forward.sm90.bf16.c64_k128_v64";
  EXPECT_EQ(chosen(contiguous_args(8, 4096, 1, 80, 128, 64)), pairs);
  EXPECT_EQ(chosen(contiguous_args(4, 8192, 8, 128, 128, 64)), pairs);
  // A head at a time has a CTA for each.
  EXPECT_EQ(chosen(contiguous_args(4, 4096, 1, 32, 128, 64)), apart);
  EXPECT_EQ(reason_of(pairs, contiguous_args(8, 4096, 1, 80, 128, 72)), "takes V <= 64, got 72");
  EXPECT_EQ(reason_of(pairs, contiguous_args(8, 4096, 80, 80, 128, 64)),
            "takes H >= 2 HQ, got 80 and 80");
  EXPECT_EQ(reason_of(pairs, contiguous_args(8, 4096, 27, 81, 128, 64)), "");
}

TEST(GlaVariants, At256KeysWideTilesOfValuesWhereThatIsFaster) {
  const std::string wide = "gla_forward.sm90.bf16.c64_k256_v128";
  const std::string narrow = "gla_forward.sm90.bf16.c64_k256_v64";
  EXPECT_EQ(chosen(contiguous_args(8, 2048, 32, 32, 256, 256)), wide);
  EXPECT_EQ(chosen(contiguous_args(4, 2048, 8, 8, 256, 512)), wide);
  EXPECT_EQ(chosen(contiguous_args(1, 8192, 4, 4, 256, 256)), wide);
  EXPECT_EQ(chosen(contiguous_args(4, 4096, 1, 32, 256, 64)), narrow);
  EXPECT_EQ(reason_of(wide, contiguous_args(4, 4096, 1, 32, 256, 64)), "takes V > 64, got 64");
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
  int first_chunks = 0;
};

/// Into how many segments a sequence is cut on an H200: few heads are, full machines are not; two
/// need not hand a state on.
TEST(GlaPlan, DecisionsOnAnH200) {
  const Decision decisions[] = {
      {"b4h32_t4096_d64", 4, 4096, 32, 64, 1},
      {"b4h32_t1024_d64", 4, 1024, 32, 64, 1},
      {"train_b8h16_t4096_d128", 8, 4096, 16, 128, 1},
      {"long_b4h32_t16384_d64", 4, 16384, 32, 64, 1},
      {"few_b1h16_t8192_d128", 1, 8192, 16, 128, 8},
      {"few_b1h8_t32768_d128", 1, 32768, 8, 128, 16},
      {"few_b1h32_t2048_d128", 1, 2048, 32, 128, 4},
      {"fla_b1h96_t8192_d128", 1, 8192, 96, 128, 1},
      {"fla_b2h16_t16384_d128", 2, 16384, 16, 128, 4},
      {"fla_b4h16_t2048_d128", 4, 2048, 16, 128, 1},
      {"fla_b4h64_t4096_d128", 4, 4096, 64, 128, 1},
      {"fla_b8h32_t2048_d256", 8, 2048, 32, 256, 1},
      {"fla_b8h8_t1024_d64", 8, 1024, 8, 64, 2, 12},
      {"mid_b2h24_t6000_d128", 2, 6000, 24, 128, 2, 68},
      {"mid_b1h40_t8192_d128", 1, 8192, 40, 128, 3},
      {"mid_b1h64_t8192_d64", 1, 8192, 64, 64, 2, 93},
      {"one head, short", 1, 512, 1, 128, 2, 6},
      {"one head, long", 1, 1 << 20, 1, 64, 118},
      {"one token", 1, 1, 1, 128, 1},
      {"no token", 1, 0, 1, 128, 1},
  };
  for (const Decision& one : decisions) {
    const GlaForwardProblem problem =
        make_problem(contiguous_args(one.B, one.T, one.H, one.H, one.K, one.K));
    const int value_dim = one.K == 256 ? 64 : one.K;
    const WalkPlan plan = plan_forward(problem, one.K, value_dim, DeviceProperties::h200());
    EXPECT_EQ(plan.segments, one.segments) << one.what;
    EXPECT_EQ(plan.first_chunks, one.first_chunks) << one.what;
    EXPECT_EQ(plan.items, one.B * one.H * (one.K / value_dim) * plan.segments) << one.what;
    EXPECT_LE(plan.blocks, 132u) << one.what;
    EXPECT_EQ(plan.workspace_bytes == 0, plan.segments == 1 || plan.first_chunks > 0) << one.what;
  }
}

/// With decays less is read for a state, so cuts are predicted to cost less, but looking at the
/// decays some.
TEST(GlaPlan, DecisionsWithDecaysOnAnH200) {
  const auto plan = [](std::int64_t B, std::int64_t T, int H, int K) {
    GlaForwardArgs args = contiguous_args(B, T, H, H, K, K);
    args.log_decay = TensorView::contiguous(reinterpret_cast<void*>(5ull << 44), DType::kFloat32,
                                            {B, T, H}, Device::cuda());
    return plan_forward(make_problem(args), K, K, DeviceProperties::h200());
  };
  EXPECT_EQ(plan(8, 1024, 8, 64).segments, 1);
  EXPECT_EQ(plan(1, 8192, 64, 64).first_chunks, 93);
  EXPECT_EQ(plan(4, 2048, 16, 128).first_chunks, 23);
  EXPECT_EQ(plan(1, 8192, 40, 128).segments, 3);
  EXPECT_EQ(plan(1, 2048, 32, 128).segments, 4);
  EXPECT_EQ(plan(1, 32768, 8, 128).segments, 16);
}

/// Packed sequences are cut as one of all tokens, if that leaves every one a CTA.
TEST(GlaPlan, PackedSequencesOnAnH200) {
  const auto plan = [](std::int64_t N, std::int64_t T, int H) {
    GlaForwardArgs args = contiguous_args(1, T, H, H, 128, 128);
    args.cu_seqlens = TensorView::contiguous(reinterpret_cast<void*>(5ull << 44), DType::kInt32,
                                             {N + 1}, Device::cuda());
    return plan_forward(make_problem(args), 128, 128, DeviceProperties::h200());
  };
  const WalkPlan prompt = plan(1, 32768, 8);
  EXPECT_EQ(prompt.segments, 16);
  EXPECT_EQ(prompt.pieces, 1 + 512 / 32);
  EXPECT_EQ(prompt.items, 8 * prompt.pieces);
  for (const std::int64_t N : {1, 2, 3, 8, 15, 16, 100}) {
    const WalkPlan some = plan(N, 32768, 8);
    EXPECT_EQ(some.split(), N < 16) << N;
    EXPECT_TRUE(!some.split() || some.items <= 132 + 8) << N;
    // The most pieces that sequences of so many tokens can have.
    const std::int64_t most = N - 1 + ceil_div(512 - (N - 1), some.piece_chunks());
    EXPECT_TRUE(!some.split() || some.pieces >= most) << N;
  }
  EXPECT_FALSE(plan(32, 131072, 16).split());
  EXPECT_FALSE(plan(0, 4096, 8).split());
}

/// The search of pairs against all of them, by definition.
TEST(GlaPlan, PairsAreTheQuickestThatFit) {
  const DeviceModel& model = device_model(DeviceProperties::h200());
  int paired = 0;
  for (const std::int64_t items : {1, 2, 3, 8, 16, 33, 66, 67, 132}) {
    for (const std::int64_t chunks : {0, 1, 2, 7, 32, 128, 513, 2048}) {
      SplitShape a{items, chunks, chunks, 128, 128, 132, &model.gla_walk, true};
      SplitShape b{items, chunks, chunks, 64, 128, 132, &model.gla_walk};
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

void expect_segments_cover(int chunks, int segments, bool chained) {
  const auto begin = [&](int i) { return segment_begin_chunk(chunks, segments, i, chained); };
  EXPECT_EQ(begin(0), 0);
  EXPECT_EQ(begin(segments), chunks);
  int longest = 0;
  for (int i = 0; i < segments; ++i) {
    const int length = begin(i + 1) - begin(i);
    EXPECT_GT(length, 0) << chunks << " in " << segments << ", segment " << i;
    longest = std::max(longest, length);
  }
  const int mean = chunks / segments;
  EXPECT_LE(longest, chained ? 2 * mean + 2 : mean + 1) << chunks << " in " << segments;
}

TEST(GlaPlan, SegmentsCoverTheSequence) {
  for (const int chunks : {1, 2, 16, 32, 33, 128, 129, 512, 1 << 14}) {
    for (const int segments : {1, 2, 3, 4, 7, 8, 16, 100, 132, 1024}) {
      if (segments > chunks) continue;
      expect_segments_cover(chunks, segments, true);
      expect_segments_cover(chunks, segments, false);
    }
  }
}

/// Walks are shared where some are left over for less than half of the CTAs.
TEST(GlaPlan, SharedWalksOnAnH200) {
  const auto parts = [](std::int64_t B, std::int64_t T, int H, bool packed = false) {
    GlaForwardArgs args = contiguous_args(B, T, H, H, 64, 64);
    if (packed) {
      args.cu_seqlens = TensorView::contiguous(reinterpret_cast<void*>(5ull << 44), DType::kInt32,
                                               {2}, Device::cuda());
    }
    const WalkPlan plan = plan_forward(make_problem(args), 64, 64, DeviceProperties::h200());
    EXPECT_EQ(plan.workspace_bytes > 0, packed || plan.shares());
    return plan.shared.parts;
  };
  EXPECT_EQ(parts(1, 8192, 160), 4);
  EXPECT_EQ(parts(1, 8192, 160, true), 0);
  EXPECT_EQ(parts(1, 8192, 132), 0);
  EXPECT_EQ(parts(2, 8192, 132), 0);
  EXPECT_EQ(parts(1, 8192, 133), 32);  // of four chunks
  EXPECT_EQ(parts(1, 8192, 198), 2);
  EXPECT_EQ(parts(1, 8192, 199), 0);
  EXPECT_EQ(parts(1, 256, 160), 0);
}

/// Every chunk of every walk once, one leg of a walk beginning with the state that the leg before
/// it ended with; and no CTA waits for one of a higher index.
TEST(GlaPlan, SharedWalksAreWalkedOnceAndInOrder) {
  struct Shape {
    int blocks, items, parts, chunks;
  };
  for (const Shape& shape : {Shape{132, 160, 4, 128},
                             {132, 320, 2, 64},
                             {132, 133, 7, 15},
                             {132, 198, 2, 8},
                             {5, 6, 5, 20},
                             {5, 16, 5, 7},
                             {3, 4, 3, 3}}) {
    const int left = shape.items % shape.blocks;
    const SharedWalks shared{shape.blocks, left, shape.parts, shape.chunks};
    ASSERT_LE(left * shape.parts, shape.blocks);
    std::map<int, std::vector<std::pair<int, Leg>>> legs;  // of each walk, by CTAs
    for (int block = 0; block < shape.blocks; ++block) {
      for (int turn = 0;; ++turn) {
        const Leg leg = shared.leg(block, shape.items / shape.blocks, turn);
        if (leg.first == leg.last) break;
        ASSERT_LT(turn, shape.items / shape.blocks + 2);
        legs[leg.index].push_back({block, leg});
      }
    }
    ASSERT_EQ(static_cast<int>(legs.size()), shape.items);
    std::set<int> slots;
    for (auto& [index, of_walk] : legs) {
      std::stable_sort(of_walk.begin(), of_walk.end(), [](const auto& a, const auto& b) {
        return a.second.first < b.second.first;
      });
      int chunk = 0, slot = Leg::kNoSlot, block = 0;
      for (const auto& [own, leg] : of_walk) {
        EXPECT_EQ(leg.first, chunk);
        EXPECT_EQ(leg.begin_slot, slot);
        EXPECT_GE(own, block);
        chunk = leg.last;
        slot = leg.end_slot;
        block = own;
        if (slot == Leg::kNoSlot) continue;
        EXPECT_TRUE(slots.insert(slot).second) << slot;
        EXPECT_LT(slot, shared.slots());
      }
      EXPECT_EQ(chunk, shape.chunks);
      EXPECT_EQ(slot, Leg::kNoSlot);
    }
  }
}

TEST(GlaPlan, SlowerMemoryMakesWalksSlower) {
  const GlaForwardProblem problem = make_problem(contiguous_args(4, 4096, 32, 32, 64, 64));
  DeviceProperties device = DeviceProperties::h200();
  const double time = predicted_time(split_shape(problem, 64, 64, device), 1);
  const auto by_chunks = [&] {
    const GlaBackwardArgs args = backward_args(4, 4096, 32, 32, 64, 64);
    return plan_chunk_backward(make_problem(args), device, false).time;
  };
  const double chunks_time = by_chunks();
  device.name = "NVIDIA H100 80GB HBM3";
  EXPECT_GT(predicted_time(split_shape(problem, 64, 64, device), 1), 1.2 * time);
  EXPECT_GT(by_chunks(), 1.2 * chunks_time);
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
