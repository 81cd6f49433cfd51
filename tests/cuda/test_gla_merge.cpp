// Packed sequences that gla merges: when it does, that results are those of the definition, and
// that NaN and inf bring back the walks of the sequences as they are, bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>

#include "cli/calls/check.h"
#include "cpp/planting.h"
#include "cuda/gla/backward.h"
#include "cuda/gla/walk/merge.h"
#include "gla_args.h"
#include "ops/gla.h"
#include "planned.h"

namespace tandem {
namespace {

constexpr const char* kSwitch = "TANDEM_GLA_MERGE";

}  // namespace
}  // namespace tandem

namespace tandem::cuda::gla {
namespace {

GlaForwardProblem packed(std::int64_t N, std::int64_t T, int H, int K) {
  GlaForwardArgs args = contiguous_args(1, T, H, H, K, K);
  args.cu_seqlens = view(5, {N + 1}, DType::kInt32);
  return make_problem(args);
}

MergePlan plan_of(const GlaForwardProblem& problem, bool states = false) {
  const SplitShape shape = split_shape(problem, problem.K, problem.K, kDevice);
  return plan_merge(problem, states, {shape});
}

/// Short sequences of a large batch are merged; few, long or few tokens' are not.
TEST(GlaMerge, DecisionsOnAnH200) {
  const struct {
    std::int64_t N, T;
    int H, K;
    std::int64_t sequences, tokens;
  } decisions[] = {
      {1000, 131072, 16, 128, 66, 1986},  // eight turns of 132 CTAs
      {32, 131072, 16, 128, 0, 0},       {500, 12000, 16, 64, 46, 261},
      {50, 1500, 3, 64, 0, 0},           {4000, 131072, 80, 64, 14, 9363},
      {1, 131072, 16, 128, 0, 0},        {2000, 8192, 8, 128, 32, 256},
      {1000, 0, 16, 128, 0, 0},
  };
  for (const auto& one : decisions) {
    const MergePlan plan = plan_of(packed(one.N, one.T, one.H, one.K));
    EXPECT_EQ(plan.sequences, one.sequences) << one.N << ' ' << one.T;
    EXPECT_EQ(plan.tokens, one.tokens) << one.N << ' ' << one.T;
  }
  EXPECT_EQ(plan_of(packed(1000, 131072, 16, 128), true).sequences, 0);                   // states
  EXPECT_EQ(plan_of(make_problem(contiguous_args(4, 4096, 8, 8, 64, 64))).sequences, 0);  // dense
}

TEST(GlaMerge, SwitchForcesOrForbidsIt) {
  const auto sequences = [](const char* text, const GlaForwardProblem& problem) {
    setenv(kSwitch, text, 1);
    const MergePlan plan = plan_of(problem);
    unsetenv(kSwitch);
    return plan.sequences;
  };
  EXPECT_EQ(sequences("1", packed(50, 1500, 3, 64)), 5);
  EXPECT_EQ(sequences("1", packed(1, 1500, 3, 64)), 0);
  EXPECT_EQ(sequences("0", packed(1000, 131072, 16, 128)), 0);
  EXPECT_THROW(sequences("2", packed(50, 1500, 3, 64)), InvalidArgument);
  unsetenv(kSwitch);
}

struct Backward {
  std::string variant;
  std::size_t bytes;
};
/// What gla_backward takes for packed sequences, with the switch as `text` says.
Backward backward_of(std::int64_t N, int K, const char* text, bool batch_invariant = false) {
  GlaBackwardArgs args = backward_args(1, 131072, 16, 16, K, K);
  args.cu_seqlens = view(10, {N + 1}, DType::kInt32);
  if (text != nullptr) setenv(kSwitch, text, 1);
  Backward found;
  CallOptions options;
  options.batch_invariant = batch_invariant;
  options.chosen = &found.variant;
  found.bytes = gla_backward_workspace_bytes(make_problem(args), kDevice, options);
  unsetenv(kSwitch);
  return found;
}

/// Many short sequences take no more memory than dense ones; a batch-invariant call merges nothing.
TEST(GlaMerge, TakesNoMoreMemoryThanDenseBatches) {
  for (const int K : {64, 128}) {
    const double most = 1.1 * 131072 * 16 * K * 2 + (16 << 20);
    for (const std::int64_t N : {100, 1000, 100000}) {
      for (const char* text : {"0", "1"}) {
        EXPECT_LE(static_cast<double>(backward_of(N, K, text).bytes), most) << K << ' ' << N;
      }
    }
  }
  EXPECT_EQ(backward_of(1000, 64, "1", true).bytes, backward_of(1000, 64, "0").bytes);
}

/// Every packed shape has a plan, merged or not, and never more sequences than it had.
TEST(GlaMerge, EveryShapeHasAPlan) {
  for (const char* text : {"0", "1", ""}) {
    setenv(kSwitch, text, 1);
    for (const std::int64_t T : {0, 1, 63, 300, 100000}) {
      for (const std::int64_t N : {0, 1, 2, 1000}) {
        for (const int heads : {1, 16, 600}) {
          for (const int width : {8, 64, 128, 256}) {
            GlaBackwardArgs args = backward_args(1, T, heads, heads, width, width);
            args.cu_seqlens = view(10, {N + 1}, DType::kInt32);
            const GlaBackwardProblem backward = make_problem(args);
            EXPECT_NO_THROW(gla_backward_workspace_bytes(backward, kDevice, {}));
            EXPECT_NO_THROW(gla_forward_workspace_bytes(packed(N, T, heads, width), kDevice, {}));
            const MergePlan plan = plan_of(packed(N, T, heads, width));
            EXPECT_LE(plan.sequences, N);
            EXPECT_GE(plan.sequences * plan.tokens, plan.sequences == 0 ? 0 : T);
          }
        }
      }
    }
  }
  unsetenv(kSwitch);
}

/// Packed sequences of 128 columns go in one reverse walk, as one, those of 64 by chunks.
TEST(GlaMerge, OneReverseWalkTakesThemAsOne) {
  const std::string walks = "gla_backward.sm90.bf16.c64";
  EXPECT_EQ(backward_of(1000, 128, nullptr).variant, walks + ".reverse");
  EXPECT_EQ(backward_of(1000, 128, "0").variant, walks);
  EXPECT_EQ(backward_of(1000, 128, nullptr, true).variant, walks);
  EXPECT_EQ(backward_of(1000, 64, nullptr).variant, walks + ".chunks");
  EXPECT_EQ(backward_of(1000, 64, nullptr, true).variant, walks);
}

/// A constant decay's gradient sums over the tokens of sequences alone.
TEST(GlaMerge, AConstantDecayGoesByWalks) {
  GlaBackwardArgs args = backward_args(1, 131072, 16, 16, 128, 128);
  args.cu_seqlens = view(10, {1001}, DType::kInt32);
  args.log_decay = view(11, {16}, DType::kFloat32);
  args.d_log_decay = view(12, {16}, DType::kFloat32);
  CallOptions options;
  std::string variant;
  options.chosen = &variant;
  gla_backward_workspace_bytes(make_problem(args), kDevice, options);
  EXPECT_EQ(variant, "gla_backward.sm90.bf16.c64");
  args.d_log_decay.reset();
  gla_backward_workspace_bytes(make_problem(args), kDevice, options);
  EXPECT_EQ(variant, "gla_backward.sm90.bf16.c64.reverse");
}

}  // namespace
}  // namespace tandem::cuda::gla

namespace tandem::tools {
namespace {

/// Cases of short sequences, all of them merged.
class GpuGlaMerge : public testing::TestWithParam<const char*> {};

TEST_P(GpuGlaMerge, AgreesWithTheDefinition) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const Operation& operation = find_operation("gla", GetParam());
  const SwitchedOn merges(kSwitch);
  int passed = 0;
  for (const Case& one : select_cases(load_cases("gla"), "short_*", "check")) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const CheckResult& result : check_case(operation, one, dtype, {Device::cuda()}, 3)) {
        EXPECT_NE(result.outcome, Outcome::kFailed)
            << result.case_name << " " << result.variant << ": " << result.detail;
        passed += result.outcome == Outcome::kPassed;
      }
    }
  }
  EXPECT_GT(passed, 50);
}

INSTANTIATE_TEST_SUITE_P(Cuda, GpuGlaMerge, testing::Values("forward", "backward"));

/// Planted in merged sequences, NaN and inf leave all others with the bits that they have apart, by
/// walks.
Planting planting(const char* direction, std::vector<const char*> inputs) {
  const std::vector<std::int64_t> offsets = {0, 70, 100, 100, 165, 400, 401, 700};
  return {.operation = find_operation("gla", direction),
          .by_token = std::move(inputs),
          .states = {},
          .forwards_only = std::string(direction) == "forward",
          .layouts = {{R"([{"name": "short", "directions": ["forward", "backward"],
              "axes": {"B": 1, "T": 700, "H": 3, "K": 40, "V": 96}, "dtype": ["bf16"],
              "decay": {"kind": "per_token", "distribution": "normal"}, "states": "none",
              "cu_seqlens": [0, 70, 100, 100, 165, 400, 401, 700], "tags": ["check"]}])",
                       offsets},
                      {R"([{"name": "short_square", "directions": ["forward", "backward"],
              "axes": {"B": 1, "T": 700, "H": 3, "K": 128}, "dtype": ["bf16"],
              "decay": {"kind": "per_token", "distribution": "normal"}, "states": "none",
              "cu_seqlens": [0, 70, 100, 100, 165, 400, 401, 700], "tags": ["check"]}])",
                       offsets}},
          .switched_on = kSwitch,
          .clean_without = {".reverse", ".groups"}};
}

TEST(GpuGlaMergeNan, StaysInItsSequenceAndHead) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const SwitchedOn whole("TANDEM_GLA_SEGMENTS");  // walks of which bits are compared
  expect_contained(planting("forward", {"q", "k", "v", "log_decay"}), {DType::kBFloat16},
                   Device::cuda());
  expect_contained(planting("backward", {"q", "k", "v", "d_o", "log_decay"}),
                   {DType::kBFloat16, DType::kFloat16}, Device::cuda());
}

}  // namespace
}  // namespace tandem::tools
