// The unfused baseline of projection: what it refuses, and on a GPU its results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

constexpr const char* kDirections[] = {"forward", "backward"};

std::string refusal(const char* direction, const std::string& fields,
                    DType dtype = DType::kBFloat16) {
  const std::string start =
      R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"], "directions": [")" +
      std::string(direction) + "\"], ";
  return baseline_refusal(find_operation("projection", direction), "unfused",
                          parse_cases("projection", start + fields + "}]", "test")[0], dtype);
}

TEST(UnfusedProjection, RefusesWithAReason) {
  const std::string segments =
      R"("segments": ["40 silu bias_fp32", "0 none", "48 l2_normalize 24", "16 sigmoid fp32 bias"])";
  const std::string wide = R"("axes": {"M": 20, "d": 24}, )";
  for (const char* direction : kDirections) {
    if (!built_with_cuda()) {
      EXPECT_THAT(refusal(direction, wide + segments), HasSubstr("cuda: "));
      continue;
    }
    for (const char* strides : {"contiguous", "packed", "padded"}) {
      EXPECT_EQ(
          refusal(direction, wide + segments + R"(, "strides": ")" + std::string(strides) + "\""),
          "")
          << direction << " " << strides;
    }
    for (const char* strides : {"misaligned", "odd", "broadcast"}) {
      EXPECT_THAT(
          refusal(direction, wide + segments + R"(, "strides": ")" + std::string(strides) + "\""),
          HasSubstr("multiples of 16 bytes"))
          << direction << " " << strides;
    }
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 20, "d": 12}, )" + segments),
                HasSubstr("multiples of 8"));
    EXPECT_THAT(refusal(direction, wide + R"("segments": ["20 none"], "strides": "padded")"),
                HasSubstr("multiples of 8"));
  }
}

TEST(UnfusedProjection, TakesEachCallAndBothInTurn) {
  for (const char* direction : {"forward", "backward", "forward_backward"}) {
    const Operation& operation = find_operation("projection", direction);
    EXPECT_STREQ(find_baseline(operation, "unfused")->variant, "unfused.cublaslt");
  }
}

TEST(GpuUnfusedProjection, EveryCaseOfWholeVectors) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  for (const char* direction : kDirections) {
    check_baseline_cases(find_operation("projection", direction), "unfused", 100);
  }
  check_baseline_cases(find_operation("projection", "forward_backward"), "unfused", 10);
}

}  // namespace
}  // namespace tandem::tools
