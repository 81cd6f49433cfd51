// gated_scan's calls give the same bits whatever else the GPU does: 100 calls beside a busy stream,
// 100 replays of a captured graph. A replay goes by the cu_seqlens that are in memory at that time.
#include <gtest/gtest.h>

#include "same_bits.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& fields) {
  return parse_cases("gated_scan",
                     R"([{"name": "a", "dtype": ["bf16"], "states": "both", "tags": [],
                          "decay": {"kind": "log_decay", "distribution": "normal_bench"}, )" +
                         fields + "}]",
                     "test")[0];
}

const std::vector<NamedShape> kShapes = {
    {nullptr, "ManyChannels", R"("axes": {"B": 2, "T": 300, "D": 2120})"},
    {nullptr, "FewChannels", R"("axes": {"B": 1, "T": 8192, "D": 64})"},
    {nullptr, "OddChannels", R"("axes": {"B": 3, "T": 1000, "D": 77})"},
    {nullptr, "ManySequences", R"("axes": {"B": 1, "T": 6000, "D": 136}, "lengths": {
        "distribution": "log_uniform", "sequences": 60, "smallest": 1, "largest": 2000})"}};

class GpuGatedScanDeterminism : public GpuSameBits {
 protected:
  static RepeatedCall repeated() {
    return {*GetParam().operation, parse(GetParam().fields), find_operation("gated_scan"),
            parse(R"("axes": {"B": 2, "T": 4096, "D": 512})")};
  }
};

TEST_P(GpuGatedScanDeterminism, CallsBesideABusyStream) { expect_same_bits_of_calls(repeated()); }
TEST_P(GpuGatedScanDeterminism, ReplaysOfAGraph) { expect_same_bits_of_replays(repeated()); }

INSTANTIATE_TEST_SUITE_P(
    Cuda, GpuGatedScanDeterminism,
    testing::ValuesIn(with_operations(
        {&find_operation("gated_scan"), &find_operation("gated_scan", "backward"),
         &find_operation("gated_scan", "decay"), &find_operation("gated_scan", "carry_backward")},
        kShapes)),
    GpuSameBits::name_of);

TEST(GpuGatedScanGraph, ReplaysGoByTheOffsetsInMemory) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  Case one = parse(R"("axes": {"B": 1, "T": 3000, "D": 136},
                      "lengths": {"distribution": "equal", "sequences": 6})");
  expect_replays_to_go_by_offsets(find_operation("gated_scan"), one);
  one.kept = Kept::kNo;  // states would be those of the first offsets
  expect_replays_to_go_by_offsets(find_operation("gated_scan", "backward"), one);
}

}  // namespace
}  // namespace tandem::tools
