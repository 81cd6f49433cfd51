// The unfused baselines of attention and attention_weights: what they refuse, and on a GPU their
// results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

std::string refusal(const char* op, const std::string& fields, const char* direction = "forward") {
  const std::string start = R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"], )";
  return baseline_refusal(find_operation(op, direction), "unfused",
                          parse_cases(op, start + fields + "}]", "test")[0], DType::kBFloat16);
}

TEST(UnfusedAttention, RefusesWithAReason) {
  const std::string dense = R"("axes": {"B": 1, "T": 96, "H": 2, "K": 64})";
  for (const char* op : {"attention", "attention_weights"}) {
    if (!built_with_cuda()) {
      EXPECT_THAT(refusal(op, dense), HasSubstr("cuda: "));
      continue;
    }
    EXPECT_EQ(refusal(op, dense), "");
    EXPECT_EQ(refusal(op, dense + R"(, "causal": "yes", "strides": "transposed")"),
              op == std::string("attention") ? "" : "the unfused baseline needs w to have no gaps");
    EXPECT_THAT(refusal(op, R"("axes": {"B": 1, "T": 96, "TK": 100, "H": 2, "K": 64})"),
                HasSubstr("multiples of 8"));
    EXPECT_THAT(refusal(op, dense + R"(, "strides": "misaligned")"),
                HasSubstr("multiples of 16 bytes"));
  }
  if (!built_with_cuda()) return;
  EXPECT_THAT(refusal("attention", dense + R"(, "cu_seqlens": [0, 96])"), HasSubstr("cu_seqlens"));
  EXPECT_THAT(refusal("attention", dense + R"(, "lengths_k": [90])"), HasSubstr("lengths_k"));
  const std::string backward = R"("directions": ["backward"], )";
  EXPECT_EQ(refusal("attention_weights", backward + dense, "backward"), "");
  EXPECT_THAT(
      refusal("attention_weights",
              backward + R"("axes": {"B": 1, "T": 96, "H": 2, "HKV": 1, "K": 64})", "backward"),
      HasSubstr("as many heads of k as of q"));
}

TEST(GpuUnfusedAttention, EveryDenseCase) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  check_baseline_cases(find_operation("attention"), "unfused", 40);
  check_baseline_cases(find_operation("attention_weights"), "unfused", 10);
  check_baseline_cases(find_operation("attention_weights", "backward"), "unfused", 10);
}

}  // namespace
}  // namespace tandem::tools
