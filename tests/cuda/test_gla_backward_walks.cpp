// The host side of gla's backward on CUDA: the walks that a call makes, and how they are cut. Needs
// no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/gla/walk/plan.h"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"
#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

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
  constexpr std::int64_t B = 16, T = 512, H = 8, K = 256, V = 512, kTokens = B * T * H;
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

TEST(GlaBackwardPlan, At256KeysWideTilesOfValuesWhereThatIsFaster) {
  const auto value_dims = [&](std::int64_t B, std::int64_t T, int H, int K, int V) {
    std::vector<int> dims;
    const GlaBackwardProblem problem = make_problem(backward_args(B, T, H, H, K, V));
    for (const BackwardWalk& walk : plan_backward(problem, DeviceProperties::h200()).walks) {
      dims.push_back(walk.plan.shape.value_dim);
    }
    return dims;
  };
  using testing::ElementsAre;
  EXPECT_THAT(value_dims(8, 2048, 32, 256, 256), ElementsAre(128, 128, 128));
  EXPECT_THAT(value_dims(8, 2048, 32, 256, 64), ElementsAre(128, 128, 64));
  EXPECT_THAT(value_dims(8, 2048, 32, 64, 256), ElementsAre(64, 64, 128));
  // Those for dq and dk leave as many panels of sums each.
  for (const int heads : {1, 20, 40, 66, 100}) {
    const GlaBackwardProblem problem = make_problem(backward_args(1, 4096, heads, heads, 192, 192));
    const BackwardPlan plan = plan_backward(problem, DeviceProperties::h200());
    for (const BackwardWalk& walk : plan.walks) {
      const WalkPlan& own = walk.plan;
      if (walk.row_sums) EXPECT_EQ(own.value_tiles * (own.shape.value_dim / 64), plan.panels);
    }
  }
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
