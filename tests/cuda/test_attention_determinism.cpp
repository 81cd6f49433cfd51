// attention_forward and attention_backward give the same bits whatever else the GPU does: 100 calls
// beside a busy stream, 100 replays of a captured graph.
#include <gtest/gtest.h>

#include "same_bits.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& fields) {
  return parse_cases("attention",
                     R"([{"name": "a", "dtype": ["bf16"], "directions": ["forward", "backward"],
                          "log_sum_exp": "yes", "tags": [], )" +
                         fields + "}]",
                     "test")[0];
}

const std::vector<NamedShape> kShapes = {
    {nullptr, "ManyHeads", R"("axes": {"B": 4, "T": 1024, "H": 16, "K": 64})"},
    {nullptr, "Causal",
     R"("causal": "yes", "axes": {"B": 1, "T": 4100, "H": 8, "HKV": 2, "K": 128})"},
    {nullptr, "Window",
     R"("causal": "yes", "window_left": 700, "axes": {"B": 2, "T": 3000, "H": 4, "K": 64})"},
    {nullptr, "ManySequences", R"("causal": "yes", "axes": {"B": 1, "T": 6000, "H": 4, "K": 128},
        "lengths": {"distribution": "log_uniform", "sequences": 60, "smallest": 1,
                    "largest": 2000})"},
    {nullptr, "Wide", R"("causal": "yes", "axes": {"B": 1, "T": 3000, "H": 8, "K": 256})"}};

class GpuAttentionDeterminism : public GpuSameBits {
 protected:
  static RepeatedCall repeated() {
    return {*GetParam().operation, parse(GetParam().fields), find_operation("attention"),
            parse(R"("axes": {"B": 2, "T": 2048, "H": 8, "K": 64})")};
  }
};

TEST_P(GpuAttentionDeterminism, CallsBesideABusyStream) { expect_same_bits_of_calls(repeated()); }
TEST_P(GpuAttentionDeterminism, ReplaysOfAGraph) { expect_same_bits_of_replays(repeated()); }

INSTANTIATE_TEST_SUITE_P(Cuda, GpuAttentionDeterminism,
                         testing::ValuesIn(with_operations({&find_operation("attention"),
                                                            &find_operation("attention",
                                                                            "backward")},
                                                           kShapes)),
                         GpuSameBits::name_of);

}  // namespace
}  // namespace tandem::tools
