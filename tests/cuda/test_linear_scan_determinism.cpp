// linear_scan_forward and linear_scan_backward give the same bits whatever else the GPU does: 100
// calls beside a busy stream, 100 replays of a captured graph. A replay goes by the cu_seqlens that
// are in memory at that time.
#include <gtest/gtest.h>

#include "same_bits.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& fields) {
  return parse_cases("linear_scan",
                     R"([{"name": "a", "dtype": ["bf16"], "states": "both", "tags": [],
                          "decay": {"kind": "log_decay", "distribution": "normal_bench"}, )" +
                         fields + "}]",
                     "test")[0];
}

// One for each tiling, with more tiles than CTAs where it has them, and one that TMA cannot read.
const std::vector<NamedShape> kShapes = {
    {nullptr, "FewTiles", R"("axes": {"B": 2, "T": 4000, "d": 64, "D": 64})"},
    {nullptr, "Chains", R"("axes": {"B": 23, "T": 520, "d": 64, "D": 136})"},
    {nullptr, "SmallTiles", R"("axes": {"B": 5, "T": 4200, "d": 64, "D": 64})"},
    {nullptr, "OddChannels", R"("axes": {"B": 3, "T": 1000, "d": 33, "D": 77})"},
    {nullptr, "ManySequences", R"("axes": {"B": 1, "T": 20000, "d": 40, "D": 72}, "lengths": {
        "distribution": "log_uniform", "sequences": 100, "smallest": 1, "largest": 2000})"}};

class GpuLinearScanDeterminism : public GpuSameBits {
 protected:
  static RepeatedCall repeated() {
    return {*GetParam().operation, parse(GetParam().fields), find_operation("linear_scan"),
            parse(R"("axes": {"B": 4, "T": 4096, "d": 256, "D": 64})")};
  }
};

TEST_P(GpuLinearScanDeterminism, CallsBesideABusyStream) { expect_same_bits_of_calls(repeated()); }
TEST_P(GpuLinearScanDeterminism, ReplaysOfAGraph) { expect_same_bits_of_replays(repeated()); }

INSTANTIATE_TEST_SUITE_P(Cuda, GpuLinearScanDeterminism,
                         testing::ValuesIn(with_operations({&find_operation("linear_scan"),
                                                            &find_operation("linear_scan",
                                                                            "backward")},
                                                           kShapes)),
                         GpuSameBits::name_of);

TEST(GpuLinearScanGraph, ReplaysGoByTheOffsetsInMemory) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  Case one = parse(R"("axes": {"B": 1, "T": 3000, "d": 64, "D": 136},
                      "lengths": {"distribution": "equal", "sequences": 6})");
  expect_replays_to_go_by_offsets(find_operation("linear_scan"), one);
  one.kept = Kept::kNo;  // states would be those of the first offsets
  expect_replays_to_go_by_offsets(find_operation("linear_scan", "backward"), one);
}

}  // namespace
}  // namespace tandem::tools
