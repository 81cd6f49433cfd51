// The unfused baseline of rms_norm_gemm: what it refuses, and on a GPU its results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

constexpr const char* kDirections[] = {"forward", "backward", "forward_backward"};

std::string refusal(const char* direction, const std::string& fields) {
  const std::string start =
      R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"], "directions": [")" +
      std::string(direction) + "\"], ";
  return baseline_refusal(find_operation("rms_norm_gemm", direction), "unfused",
                          parse_cases("rms_norm_gemm", start + fields + "}]", "test")[0],
                          DType::kBFloat16);
}

TEST(UnfusedRmsNormGemm, RefusesWithAReason) {
  const std::string segments =
      R"("segments": ["40 none bias_fp32", "0 none", "48 none", "24 none", "16 none fp32 bias"])";
  const std::string axes = R"("axes": {"M": 20, "d": 24}, )";
  for (const char* direction : kDirections) {
    SCOPED_TRACE(direction);
    if (!built_with_cuda()) {
      EXPECT_THAT(refusal(direction, axes + segments), HasSubstr("cuda: "));
      continue;
    }
    for (const std::string strides : {"contiguous", "packed", "padded"}) {
      EXPECT_EQ(refusal(direction, axes + segments + R"(, "strides": ")" + strides + "\""), "")
          << strides;
    }
    for (const std::string strides : {"misaligned", "odd"}) {
      EXPECT_THAT(refusal(direction, axes + segments + R"(, "strides": ")" + strides + "\""),
                  HasSubstr("multiples of 16 bytes"))
          << strides;
    }
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 20, "d": 12}, )" + segments),
                HasSubstr("multiples of 8"));
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 1, "d": 8200}, "segments": ["8 none"])"),
                HasSubstr("d must be at most 8192"));
  }
}

TEST(UnfusedRmsNormGemm, TakesEachCallAndBothInTurn) {
  for (const char* direction : kDirections) {
    const Operation& operation = find_operation("rms_norm_gemm", direction);
    EXPECT_STREQ(find_baseline(operation, "unfused")->variant, "unfused.norm_cublaslt");
  }
}

TEST(GpuUnfusedRmsNormGemm, EveryCaseOfWholeVectors) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  for (const char* direction : kDirections) {
    check_baseline_cases(find_operation("rms_norm_gemm", direction), "unfused", 20);
  }
}

}  // namespace
}  // namespace tandem::tools
