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

namespace tandem::cuda::gla {
namespace {

constexpr const char* kSwitch = "TANDEM_GLA_MERGE";

GlaForwardProblem packed(std::int64_t N, std::int64_t T, int H, int K) {
  GlaForwardArgs args = contiguous_args(1, T, H, H, K, K);
  args.cu_seqlens = view(5, {N + 1}, DType::kInt32);
  return make_problem(args);
}

MergePlan plan_of(const GlaForwardProblem& problem, bool states = false) {
  const SplitShape shape = split_shape(problem, problem.K, problem.K, kDevice);
  std::size_t workspace_bytes = 0;
  return plan_merge(problem, states, {shape}, workspace_bytes);
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

/// What a call needs beside what it needs for sequences as they are: decays and boundaries. And a
/// batch-invariant call merges nothing.
TEST(GlaMerge, TakesTheMemoryOfTheDecays) {
  GlaBackwardArgs args = backward_args(1, 131072, 16, 16, 128, 128);
  args.cu_seqlens = view(10, {1001}, DType::kInt32);
  const GlaBackwardProblem problem = make_problem(args);
  const auto bytes = [&](const char* text, bool batch_invariant) {
    setenv(kSwitch, text, 1);
    CallOptions options;
    options.batch_invariant = batch_invariant;
    const std::size_t result = gla_backward_workspace_bytes(problem, kDevice, options);
    unsetenv(kSwitch);
    return result;
  };
  const std::size_t apart = bytes("0", false);
  EXPECT_EQ(bytes("1", false) - apart, 4u * 131072 * 16 + 512 + 256);
  EXPECT_EQ(bytes("1", true), apart);
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
  setenv("TANDEM_GLA_MERGE", "1", 1);
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
  unsetenv("TANDEM_GLA_MERGE");
  EXPECT_GT(passed, 50);
}

INSTANTIATE_TEST_SUITE_P(Cuda, GpuGlaMerge, testing::Values("forward", "backward"));

/// Planted in merged sequences, NaN and inf leave all others with the bits that they have apart.
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
          .switched_on = "TANDEM_GLA_MERGE"};
}

TEST(GpuGlaMergeNan, StaysInItsSequenceAndHead) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  expect_contained(planting("forward", {"q", "k", "v", "log_decay"}), {DType::kBFloat16},
                   Device::cuda());
  expect_contained(planting("backward", {"q", "k", "v", "d_o", "log_decay"}),
                   {DType::kBFloat16, DType::kFloat16}, Device::cuda());
}

}  // namespace
}  // namespace tandem::tools
