// The unfused baseline of gemm_swiglu: what it refuses, and on a GPU its results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

constexpr const char* kDirections[] = {"forward", "backward", "forward_backward"};

std::string refusal(const char* direction, const std::string& fields) {
  const std::string start =
      R"([{"name": "a", "dtype": ["bf16"], "norm": "fp32", "tags": ["check"], "directions": [")" +
      std::string(direction) + "\"], ";
  return baseline_refusal(find_operation("gemm_swiglu", direction), "unfused",
                          parse_cases("gemm_swiglu", start + fields + "}]", "test")[0],
                          DType::kBFloat16);
}

TEST(UnfusedGemmSwiglu, RefusesWithAReason) {
  const std::string wide = R"("axes": {"M": 20, "d": 24, "F": 40})";
  for (const char* direction : kDirections) {
    SCOPED_TRACE(direction);
    if (!built_with_cuda()) {
      EXPECT_THAT(refusal(direction, wide), HasSubstr("cuda: "));
      continue;
    }
    const auto with = [&](const char* strides) {
      return refusal(direction, wide + R"(, "strides": ")" + strides + "\"");
    };
    for (const char* strides : {"contiguous", "packed", "padded"}) {
      EXPECT_EQ(with(strides), "") << strides;
    }
    for (const char* strides : {"misaligned", "odd", "broadcast"}) {
      EXPECT_THAT(with(strides), HasSubstr("multiples of 16 bytes")) << strides;
    }
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 20, "d": 12, "F": 40})"),
                HasSubstr("multiples of 8"));
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 20, "d": 24, "F": 20}, "strides": "padded")"),
                HasSubstr("multiples of 8"));
  }
}

TEST(UnfusedGemmSwiglu, TakesEachCallAndBothInTurn) {
  for (const char* direction : kDirections) {
    const Operation& operation = find_operation("gemm_swiglu", direction);
    EXPECT_STREQ(find_baseline(operation, "unfused")->variant, "unfused.cublaslt");
  }
}

/// Both in turn keep the products in place of the slopes, which then are neither written nor read.
TEST(UnfusedGemmSwiglu, ForgoesTheSlopes) {
  const Case one = parse_cases("gemm_swiglu",
                               R"([{"name": "a", "dtype": ["bf16"], "tags": [],
                                    "axes": {"M": 3, "d": 8, "F": 8}, "norm": "same"}])",
                               "test")[0];
  for (const char* direction : {"forward", "forward_backward"}) {
    const Operation& operation = find_operation("gemm_swiglu", direction);
    const TensorSet set = with_baseline(operation, *find_baseline(operation, "unfused"))
                              .make(one, DType::kBFloat16, 1);
    const bool both = direction == std::string("forward_backward");
    for (const char* name : {"gate_slope", "up_slope"}) {
      const NamedTensor* tensor = set.find(name);
      EXPECT_EQ(tensor != nullptr, both) << direction << " " << name;
      if (tensor != nullptr) {
        EXPECT_FALSE(tensor->output);
      }
    }
  }
}

TEST(GpuUnfusedGemmSwiglu, EveryCaseOfWholeVectors) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  for (const char* direction : kDirections) {
    check_baseline_cases(find_operation("gemm_swiglu", direction), "unfused", 40);
  }
}

}  // namespace
}  // namespace tandem::tools
