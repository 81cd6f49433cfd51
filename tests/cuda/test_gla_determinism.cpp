// gla_forward and gla_backward give the same bits whatever else the GPU does: 100 calls beside a
// busy stream, 100 replays of a captured graph. A replay goes by the cu_seqlens that are in memory
// at that time. A call works in a thread that has not used CUDA before. Walks of two heads, and
// those that CTAs share, have the bits of whole walks of one head.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "cli/ops/gla.h"
#include "same_bits.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& fields) {
  return parse_cases("gla",
                     R"([{"name": "a", "dtype": ["bf16"], "tags": [],
                          "decay": {"kind": "per_token", "distribution": "normal_bench"}, )" +
                         fields + "}]",
                     "test")[0];
}

const std::vector<NamedShape> kShapes = {
    {nullptr, "ManyHeads", R"("states": "both", "axes": {"B": 4, "T": 1024, "H": 32, "K": 128})"},
    {nullptr, "FewHeads", R"("states": "both", "axes": {"B": 1, "T": 8192, "H": 2, "K": 128})"},
    {nullptr, "NarrowHeads", R"("states": "both", "axes": {"B": 4, "T": 1100, "H": 12, "K": 64})"},
    {nullptr, "PartialChunks",
     R"("states": "both", "axes": {"B": 2, "T": 150, "H": 40, "K": 128})"},
    {nullptr, "CutWalks", R"("axes": {"B": 4, "T": 1100, "H": 12, "K": 64}, "states": "none")"},
    {nullptr, "SharedWalks", R"("states": "both", "axes": {"B": 2, "T": 1100, "H": 80, "K": 64})"},
    {nullptr, "PairsOfHeads",
     R"("states": "both", "axes": {"B": 4, "T": 1100, "H": 80, "HQ": 4, "K": 128, "V": 64})"},
    {nullptr, "GroupedHeads",
     R"("states": "both", "axes": {"B": 2, "T": 1100, "H": 40, "HQ": 2, "K": 128, "V": 64})"},
    {nullptr, "WideGroupedHeads",
     R"("states": "both", "axes": {"B": 2, "T": 1100, "H": 40, "HQ": 2, "K": 256, "V": 64})"},
    {nullptr, "CutGroupedHeads",
     R"("states": "both", "axes": {"B": 1, "T": 5000, "H": 8, "HQ": 1, "K": 128})"},
    {nullptr, "PackedGroupedHeads",
     R"("states": "none", "axes": {"B": 1, "T": 6000, "H": 16, "HQ": 2, "K": 64},
        "lengths": {"distribution": "log_uniform", "sequences": 40, "smallest": 1,
                    "largest": 1000})"},
    {nullptr, "WideValues",
     R"("states": "both", "axes": {"B": 2, "T": 1100, "H": 4, "K": 256, "V": 512})"},
    {nullptr, "ShortSequences", R"("states": "none", "axes": {"B": 1, "T": 6000, "H": 16, "K": 128},
        "lengths": {"distribution": "log_uniform", "sequences": 250, "smallest": 1,
                    "largest": 400})"},
    {nullptr, "ManySequences", R"("states": "both", "axes": {"B": 1, "T": 20000, "H": 4, "K": 64},
        "lengths": {"distribution": "log_uniform", "sequences": 100, "smallest": 1,
                    "largest": 2000})"}};

class GpuGlaDeterminism : public GpuSameBits {
 protected:
  static RepeatedCall repeated() {
    return {*GetParam().operation, parse(GetParam().fields), find_operation("gla"),
            parse(R"("states": "both", "axes": {"B": 2, "T": 4096, "H": 16, "K": 64})")};
  }
};

TEST_P(GpuGlaDeterminism, CallsBesideABusyStream) { expect_same_bits_of_calls(repeated()); }
TEST_P(GpuGlaDeterminism, ReplaysOfAGraph) { expect_same_bits_of_replays(repeated()); }

INSTANTIATE_TEST_SUITE_P(Cuda, GpuGlaDeterminism,
                         testing::ValuesIn(with_operations({&find_operation("gla"),
                                                            &find_operation("gla", "backward")},
                                                           kShapes)),
                         GpuSameBits::name_of);

TEST(GpuGlaGraph, ReplaysGoByTheOffsetsInMemory) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const Case one = parse(R"("states": "both", "axes": {"B": 1, "T": 3000, "H": 2, "K": 64},
                      "lengths": {"distribution": "equal", "sequences": 6})");
  // Packed sequences by groups of heads, as one.
  const Case grouped =
      parse(R"("states": "none", "axes": {"B": 1, "T": 6000, "H": 8, "HQ": 1, "K": 64},
                      "lengths": {"distribution": "equal", "sequences": 6})");
  for (const Operation* operation : {&find_operation("gla"), &find_operation("gla", "backward")}) {
    expect_replays_to_go_by_offsets(*operation, one);
    expect_replays_to_go_by_offsets(*operation, grouped);
  }
}

TEST(GpuGlaPairs, HaveTheBitsOfAHeadAtATime) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  // 320 walks of pairs, of which 56 are shared, and 624 of one head, none of them shared.
  const Case one = parse(R"("states": "both",
      "axes": {"B": 8, "T": 1000, "H": 78, "HQ": 2, "K": 128, "V": 64})");
  const auto call_of = [&](const char* variant) {
    setenv("TANDEM_VARIANT", variant, 1);
    DeviceCall call(find_operation("gla"), one);
    call.poison(nullptr);
    call.enqueue(nullptr);
    unsetenv("TANDEM_VARIANT");
    return call;
  };
  DeviceCall pairs = call_of("gla_forward.sm90.bf16.c64_k128_v64.pairs");
  DeviceCall apart = call_of("gla_forward.sm90.bf16.c64_k128_v64");
  EXPECT_EQ(find_difference(apart.set(), apart.results(), pairs.results()), "");
}

TEST(GpuGlaThread, ACallMayBeTheFirstUseOfCudaInItsThread) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const Case one = parse(R"("states": "both", "axes": {"B": 1, "T": 200, "H": 2, "K": 64})");
  for (const Operation* operation : {&find_operation("gla"), &find_operation("gla", "backward"),
                                     &find_operation("gla", "state")}) {
    SCOPED_TRACE(title(*operation));
    DeviceCall call(*operation, one);
    call.poison(nullptr);
    std::string error;
    std::thread([&] {
      try {
        call.enqueue(nullptr);
      } catch (const std::exception& thrown) {
        error = thrown.what();
      }
    }).join();
    EXPECT_EQ(error, "");
    const auto errors = call.compare(call.results(), false);
    for (const OutputError& output : errors) EXPECT_TRUE(output.passed) << describe(errors);
  }
}

}  // namespace
}  // namespace tandem::tools
