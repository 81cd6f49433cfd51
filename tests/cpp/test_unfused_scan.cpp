// The unfused baselines of the scans: what they refuse, and on a GPU their results.
#include <gmock/gmock.h>

#include "baseline_cases.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

std::string refusal(const Operation& operation, const char* provider, const std::string& fields,
                    DType dtype = DType::kBFloat16) {
  const std::string start =
      R"([{"name": "a", "dtype": ["bf16"], "tags": ["check"],
           "decay": {"kind": "log_decay", "distribution": "normal"}, )";
  const Case one = parse_cases(operation.name, start + fields + "}]", "test")[0];
  return baseline_refusal(operation, provider, one, dtype);
}

/// A forward that keeps nothing for its backward, as baselines have it.
Operation linear_scan_inference() {
  Operation operation = find_operation("linear_scan");
  operation.make = [make = operation.make](Case one, DType dtype, std::uint64_t seed) {
    one.kept = Kept::kNo;
    return make(one, dtype, seed);
  };
  return operation;
}

TEST(UnfusedScan, RefusesWithAReason) {
  const std::string scan = R"("axes": {"B": 1, "T": 100, "D": 7})";
  const std::string keeping = R"("axes": {"B": 2, "T": 100, "d": 24, "D": 40})";
  const std::string linear = keeping + R"(, "kept": "no")";
  if (!built_with_cuda()) {
    EXPECT_THAT(refusal(find_operation("gated_scan"), "unfused", scan), HasSubstr("cuda: "));
    EXPECT_THAT(refusal(find_operation("linear_scan"), "unfused", linear), HasSubstr("cuda: "));
    EXPECT_THAT(refusal(find_operation("linear_scan"), "unfused_two", linear), HasSubstr("cuda: "));
    return;
  }
  EXPECT_EQ(refusal(find_operation("gated_scan"), "unfused", scan), "");
  EXPECT_EQ(refusal(find_operation("linear_scan"), "unfused", linear), "");
  EXPECT_THAT(refusal(find_operation("gated_scan"), "unfused", scan, DType::kFloat32),
              HasSubstr("not for fp32"));
  EXPECT_THAT(
      refusal(find_operation("gated_scan"), "unfused", scan + R"(, "cu_seqlens": [0, 100])"),
      HasSubstr("cu_seqlens"));
  for (const char* provider : {"unfused", "unfused_two"}) {
    EXPECT_THAT(refusal(find_operation("linear_scan"), provider, keeping),
                HasSubstr("nothing is kept"));
    for (const char* strides : {"padded", "misaligned", "broadcast"}) {
      EXPECT_THAT(refusal(find_operation("linear_scan"), provider,
                          linear + R"(, "strides": ")" + std::string(strides) + "\""),
                  HasSubstr("no gaps"))
          << provider << " " << strides;
    }
  }
}

TEST(UnfusedScan, ProvidersByName) {
  EXPECT_THAT(provider_names(), testing::ElementsAre("tandem", "unfused", "unfused_two"));
  EXPECT_EQ(find_baseline(find_operation("gated_scan"), "unfused_two"), nullptr);
  EXPECT_EQ(find_baseline(find_operation("gated_scan", "backward"), "unfused"), nullptr);
  EXPECT_TRUE(has_provider(find_operation("gated_scan", "backward"), "tandem"));
  EXPECT_FALSE(has_provider(find_operation("gated_scan", "backward"), "unfused"));
  const Operation& linear_scan = find_operation("linear_scan");
  EXPECT_FALSE(linear_scan.instead);
  EXPECT_STREQ(
      with_baseline(linear_scan, *find_baseline(linear_scan, "unfused_two")).instead->variant,
      "unfused_two.gemm_gated_scan");
}

TEST(GpuUnfusedScan, EveryDenseCase) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  check_baseline_cases(find_operation("gated_scan"), "unfused", 100);
  check_baseline_cases(linear_scan_inference(), "unfused", 100);
}

TEST(GpuUnfusedScan, TwoKernelsWhereThereIsAGatedScan) {
  if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
  if (available_variants(find_operation("gated_scan"), Device::cuda()).empty()) {
    GTEST_SKIP() << "gated_scan has no variant for CUDA devices";
  }
  check_baseline_cases(linear_scan_inference(), "unfused_two", 100);
}

}  // namespace
}  // namespace tandem::tools
