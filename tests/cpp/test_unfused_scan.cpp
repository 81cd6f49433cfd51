// The unfused baselines of the scans: what they refuse, and on a GPU their results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

constexpr const char* kDirections[] = {"forward", "backward", "forward_backward"};
constexpr const char* kGaps[] = {"padded", "misaligned", "broadcast"};

std::string with_strides(const std::string& strides) {
  return R"(, "strides": ")" + strides + "\"";
}

std::string refusal(const Operation& operation, const char* provider, const std::string& fields,
                    DType dtype = DType::kBFloat16) {
  const std::string start = R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"],
           "directions": [")" +
                            operation.direction + R"("],
           "decay": {"kind": "log_decay", "distribution": "normal"}, )";
  const Case one = parse_cases(operation.name, start + fields + "}]", "test")[0];
  return baseline_refusal(operation, provider, one, dtype);
}

TEST(UnfusedScan, RefusesWithAReason) {
  const std::string scan = R"("axes": {"B": 1, "T": 100, "D": 7})";
  const std::string linear = R"("axes": {"B": 2, "T": 100, "d": 24, "D": 40})";
  if (!built_with_cuda()) {
    EXPECT_THAT(refusal(find_operation("gated_scan"), "unfused", scan), HasSubstr("cuda: "));
    EXPECT_THAT(refusal(find_operation("linear_scan"), "unfused", linear), HasSubstr("cuda: "));
    return;
  }
  EXPECT_EQ(refusal(find_operation("gated_scan"), "unfused", scan), "");
  EXPECT_EQ(refusal(find_operation("linear_scan"), "unfused", linear), "");
  EXPECT_THAT(refusal(find_operation("gated_scan"), "unfused", scan, DType::kFloat32),
              HasSubstr("not for fp32"));
  EXPECT_THAT(
      refusal(find_operation("gated_scan"), "unfused", scan + R"(, "cu_seqlens": [0, 100])"),
      HasSubstr("cu_seqlens"));
  for (const char* strides : kGaps) {
    EXPECT_THAT(refusal(find_operation("linear_scan"), "unfused", linear + with_strides(strides)),
                HasSubstr("no gaps"))
        << strides;
  }
}

TEST(UnfusedScan, ComposedRefusesWithAReason) {
  const std::string dense = R"("axes": {"B": 2, "T": 100, "d": 24, "D": 40}, "states": "both")";
  const std::string packed =
      R"("axes": {"B": 1, "T": 100, "d": 24, "D": 40}, "cu_seqlens": [0, 100])";
  for (const char* direction : kDirections) {
    const Operation& operation = find_operation("linear_scan", direction);
    if (!built_with_cuda()) {
      EXPECT_THAT(refusal(operation, "composed", dense), HasSubstr("cuda: ")) << direction;
      continue;
    }
    EXPECT_THAT(refusal(operation, "composed", packed), HasSubstr("cu_seqlens")) << direction;
    for (const char* strides : kGaps) {
      EXPECT_THAT(refusal(operation, "composed", dense + with_strides(strides)),
                  HasSubstr("no gaps"))
          << direction << " " << strides;
    }
  }
}

TEST(UnfusedScan, ProvidersByName) {
  EXPECT_THAT(provider_names(), testing::ElementsAre("tandem", "composed", "unfused"));
  EXPECT_EQ(find_baseline(find_operation("gated_scan"), "composed"), nullptr);
  EXPECT_EQ(find_baseline(find_operation("gated_scan", "backward"), "unfused"), nullptr);
  EXPECT_TRUE(has_provider(find_operation("gated_scan", "backward"), "tandem"));
  EXPECT_FALSE(has_provider(find_operation("gated_scan", "backward"), "unfused"));
  for (const char* direction : kDirections) {
    const Operation& linear_scan = find_operation("linear_scan", direction);
    EXPECT_FALSE(linear_scan.instead);
    const Operation composed = with_baseline(linear_scan, *find_baseline(linear_scan, "composed"));
    EXPECT_STREQ(composed.instead->variant, "composed.gemm_gated_scan");
    EXPECT_EQ(composed.instead->calls, linear_scan.calls);
  }
}

TEST(GpuUnfusedScan, EveryDenseCase) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  check_baseline_cases(find_operation("gated_scan"), "unfused", 100);
  check_baseline_cases(find_operation("linear_scan"), "unfused", 100);
}

TEST(GpuUnfusedScan, EveryDenseCaseComposed) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  if (available_variants(find_operation("gated_scan"), Device::cuda()).empty()) {
    GTEST_SKIP() << "gated_scan has no variant for CUDA devices";
  }
  check_baseline_cases(find_operation("linear_scan", "forward"), "composed", 100);
  check_baseline_cases(find_operation("linear_scan", "backward"), "composed", 100);
  check_baseline_cases(find_operation("linear_scan", "forward_backward"), "composed", 10);
}

}  // namespace
}  // namespace tandem::tools
