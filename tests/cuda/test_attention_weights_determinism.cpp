// attention_weights_forward and attention_weights_backward give the same bits whatever else the GPU
// does: 100 calls beside a busy stream, 100 replays of a captured graph.
#include <gtest/gtest.h>

#include "same_bits.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& fields) {
  return parse_cases("attention_weights",
                     R"([{"name": "a", "dtype": ["bf16"], "directions": ["forward", "backward"],
                          "tags": [], )" +
                         fields + "}]",
                     "test")[0];
}

const std::vector<NamedShape> kShapes = {
    {nullptr, "ManyHeads", R"("axes": {"B": 4, "T": 1024, "H": 16, "K": 64})"},
    {nullptr, "Causal",
     R"("causal": "yes", "axes": {"B": 1, "T": 2100, "H": 8, "HKV": 2, "K": 128})"}};

class GpuAttentionWeightsDeterminism : public GpuSameBits {
 protected:
  static RepeatedCall repeated() {
    return {*GetParam().operation, parse(GetParam().fields), find_operation("attention_weights"),
            parse(R"("axes": {"B": 2, "T": 1024, "H": 8, "K": 64})")};
  }
};

TEST_P(GpuAttentionWeightsDeterminism, CallsBesideABusyStream) {
  expect_same_bits_of_calls(repeated());
}
TEST_P(GpuAttentionWeightsDeterminism, ReplaysOfAGraph) { expect_same_bits_of_replays(repeated()); }

INSTANTIATE_TEST_SUITE_P(Cuda, GpuAttentionWeightsDeterminism,
                         testing::ValuesIn(with_operations({&find_operation("attention_weights"),
                                                            &find_operation("attention_weights",
                                                                            "backward")},
                                                           kShapes)),
                         GpuSameBits::name_of);

}  // namespace
}  // namespace tandem::tools
