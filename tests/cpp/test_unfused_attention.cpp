// The unfused baseline of attention: what it refuses, and on a GPU its results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& fields) {
  const std::string start = R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"], )";
  return baseline_refusal(find_operation("attention"), "unfused",
                          parse_cases("attention", start + fields + "}]", "test")[0],
                          DType::kBFloat16);
}

TEST(UnfusedAttention, RefusesWithAReason) {
  const std::string dense = R"("axes": {"B": 1, "T": 96, "H": 2, "K": 64})";
  if (!built_with_cuda()) {
    EXPECT_THAT(refusal(dense), HasSubstr("cuda: "));
    return;
  }
  EXPECT_EQ(refusal(dense), "");
  EXPECT_EQ(refusal(dense + R"(, "causal": "yes", "strides": "transposed")"), "");
  EXPECT_THAT(refusal(R"("axes": {"B": 1, "T": 96, "TK": 100, "H": 2, "K": 64})"),
              HasSubstr("multiples of 8"));
  EXPECT_THAT(refusal(dense + R"(, "strides": "misaligned")"), HasSubstr("multiples of 16 bytes"));
  EXPECT_THAT(refusal(dense + R"(, "cu_seqlens": [0, 96])"), HasSubstr("cu_seqlens"));
  EXPECT_THAT(refusal(dense + R"(, "lengths_k": [90])"), HasSubstr("lengths_k"));
}

TEST(GpuUnfusedAttention, EveryDenseCase) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  check_baseline_cases(find_operation("attention"), "unfused", 40);
}

}  // namespace
}  // namespace tandem::tools
