// The unfused baseline of gla: what it refuses, and on a GPU its results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

std::string refusal(const std::string& fields, DType dtype) {
  const std::string start =
      R"([{"name": "a", "dtype": ["bf16"], "decay": {"kind": "none"}, "tags": ["check"], )";
  return baseline_refusal(find_operation("gla"), "unfused",
                          parse_cases("gla", start + fields + "}]", "test")[0], dtype);
}

TEST(UnfusedGla, RefusesWithAReason) {
  const std::string dense = R"("axes": {"B": 1, "T": 100, "H": 2, "K": 64})";
  if (!built_with_cuda()) {
    EXPECT_THAT(refusal(dense, DType::kBFloat16), testing::HasSubstr("cuda: "));
    return;
  }
  EXPECT_EQ(refusal(dense, DType::kBFloat16), "");
  EXPECT_THAT(refusal(R"("axes": {"B": 1, "T": 100, "H": 2, "K": 12})", DType::kBFloat16),
              testing::HasSubstr("multiples of 8"));
  EXPECT_THAT(refusal(dense + R"(, "cu_seqlens": [0, 100])", DType::kBFloat16),
              testing::HasSubstr("cu_seqlens"));
}

TEST(GpuUnfusedGla, EveryDenseCaseOfItsWidths) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  check_baseline_cases(find_operation("gla"), "unfused", 100);
}

}  // namespace
}  // namespace tandem::tools
