// The unfused baseline of gated_output: what it refuses, and on a GPU its results.
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
  return baseline_refusal(find_operation("gated_output", direction), "unfused",
                          parse_cases("gated_output", start + fields + "}]", "test")[0],
                          DType::kBFloat16);
}

TEST(UnfusedGatedOutput, RefusesWithAReason) {
  const std::string axes = R"("axes": {"M": 20, "d_in": 48, "d": 40})";
  const std::string norms =
      R"(, "output_gate": "silu", "group_norm": "same", "bias": "fp32", "norm": "fp32")"
      R"(, "output_norm": "layer_norm", "sum": "yes", "group_width": )";
  for (const char* direction : kDirections) {
    SCOPED_TRACE(direction);
    if (!built_with_cuda()) {
      EXPECT_THAT(refusal(direction, axes), HasSubstr("cuda: "));
      continue;
    }
    const auto with = [&](const char* strides) {
      return refusal(direction, axes + norms + R"(16, "strides": ")" + strides + "\"");
    };
    for (const char* strides : {"contiguous", "packed", "padded"}) {
      EXPECT_EQ(with(strides), "") << strides;
    }
    for (const char* strides : {"misaligned", "odd"}) {
      EXPECT_THAT(with(strides), HasSubstr("multiples of 16 bytes")) << strides;
    }
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 20, "d_in": 12, "d": 40})"),
                HasSubstr("multiples of 8"));
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 20, "d_in": 48, "d": 36})"),
                HasSubstr("multiples of 8"));
    EXPECT_THAT(refusal(direction, axes + norms + "12"),
                HasSubstr("group_width must be a multiple of 8"));
    const std::string wide = R"("axes": {"M": 1, "d_in": 8200, "d": 8})";
    EXPECT_EQ(refusal(direction, wide), "");
    EXPECT_THAT(refusal(direction, wide + norms + "8200"),
                HasSubstr("group_width must be at most 8192"));
    EXPECT_THAT(refusal(direction, R"("axes": {"M": 1, "d_in": 8, "d": 8200})" + norms + "8"),
                HasSubstr("d must be at most 8192"));
  }
}

TEST(UnfusedGatedOutput, TakesEachCallAndBothInTurn) {
  for (const char* direction : kDirections) {
    const Operation& operation = find_operation("gated_output", direction);
    EXPECT_STREQ(find_baseline(operation, "unfused")->variant, "unfused.gate_cublaslt_norm");
  }
}

/// Both in turn take each way of a group through the kernels: lanes of a warp, one or two vectors
/// of each, and a CTA.
TEST(GpuUnfusedGatedOutput, GroupsOfEachWidth) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  const Operation& operation = find_operation("gated_output", "forward_backward");
  const Operation measured = with_baseline(operation, *find_baseline(operation, "unfused"));
  for (const std::string width : {"8", "24", "256", "264", "512", "520", "4096", "8192"}) {
    for (const std::string behind : {"no", "yes"}) {
      const Case one = parse_cases("gated_output",
                                   R"([{"name": "a", "dtype": ["bf16"], "tags": [], "directions": [
                                        "forward_backward"], "axes": {"M": 77, "d_in": )" +
                                       std::to_string(3 * std::stoi(width)) +
                                       R"(, "d": 136}, "output_gate": "silu", "group_norm": "same",
                                        "group_width": )" +
                                       width + R"(, "behind_gate": ")" + behind + "\"}]",
                                   "test")[0];
      const TensorSet set = measured.make(one, DType::kBFloat16, 1);
      Placement placement(set, Device::cuda());
      measured.call(set, placement.bases(), Device::cuda(), {});
      const auto errors = operation.expect(set, false)->compare(set, placement.download());
      for (const OutputError& error : errors) {
        EXPECT_LE(error.value, baseline_limit(error.limit, DType::kBFloat16))
            << width << " " << behind << ": " << describe(errors);
      }
    }
  }
}

TEST(GpuUnfusedGatedOutput, EveryCaseOfWholeVectors) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  for (const char* direction : kDirections) {
    check_baseline_cases(find_operation("gated_output", direction), "unfused", 40);
  }
}

}  // namespace
}  // namespace tandem::tools
