// Replays of a graph go by the inputs that are in memory at that time, also where kernels start
// early and read without waiting what lies two kernels back (docs/design.md, "What CUDA does not
// promise"): inputs are replaced on the stream just before each replay, which must have the bits
// of a call on them.
#include <gtest/gtest.h>

#include "same_bits.h"

namespace tandem::tools {
namespace {

struct Replayed {
  const char* name;
  const char* op;
  const char* direction;
  const char* fields;  // of a case
};
void PrintTo(const Replayed& one, std::ostream* out) { *out << one.name; }

constexpr const char* kDecay =
    R"("decay": {"kind": "per_token", "distribution": "normal_bench"}, "states": "both", "axes": )";

class GpuReplays : public testing::TestWithParam<Replayed> {
 public:
  static std::string name_of(const testing::TestParamInfo<Replayed>& info) {
    return info.param.name;
  }
};

TEST_P(GpuReplays, GoByTheInputsInMemory) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const auto& [name, op, direction, fields] = GetParam();
  const std::string prefix = std::string(op) == "gla" ? kDecay : "";
  const Case one = parse_cases(
      op, R"([{"name": "a", "dtype": ["bf16"], "tags": [], )" + prefix + fields + "}]", "test")[0];
  const Operation& operation = find_operation(op, direction);
  DeviceCall replayed(operation, one), calls[2] = {{operation, one, 2}, {operation, one, 3}};
  const SideStream stream;
  Graph graph(replayed, stream.handle);
  Buffers expected[2];
  for (int i = 0; i < 2; ++i) {
    calls[i].poison(stream.handle);
    calls[i].enqueue(stream.handle);
    expected[i] = calls[i].results();
  }
  for (int i = 0; i < 40; ++i) {
    replayed.poison(stream.handle);
    // The replay before has just read the other ones.
    for (int turn = 0; turn < 3; ++turn) {
      replayed.take_inputs(calls[(i + turn) % 2], stream.handle);
      graph.replay(stream.handle);
    }
    ASSERT_EQ(find_difference(replayed.set(), expected[i % 2], replayed.results()), "")
        << "replay " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, GpuReplays,
    testing::Values(
        Replayed{"GlaForwardFewHeads", "gla", "forward", R"({"B": 1, "T": 8192, "H": 2, "K": 64})"},
        Replayed{"GlaFewHeads", "gla", "backward", R"({"B": 1, "T": 8192, "H": 2, "K": 64})"},
        Replayed{"GlaMiddleHeads", "gla", "backward", R"({"B": 1, "T": 2100, "H": 24, "K": 128})"},
        Replayed{"GlaWideHeads", "gla", "backward", R"({"B": 1, "T": 1100, "H": 4, "K": 256})"},
        Replayed{"GlaUnequalWidths", "gla", "backward",
                 R"({"B": 1, "T": 1100, "H": 8, "K": 64, "V": 96})"},
        Replayed{"GlaGroupedHeads", "gla", "backward",
                 R"({"B": 1, "T": 1100, "H": 40, "HQ": 2, "K": 128, "V": 64})"},
        Replayed{"Projection", "projection", "forward",
                 R"("axes": {"M": 40, "d": 1024}, "segments": ["512 silu"])"},
        Replayed{"RmsNormGemmOfFewRows", "rms_norm_gemm", "forward",
                 R"("axes": {"M": 40, "d": 1024}, "segments": ["512 none"])"},
        Replayed{"RmsNormGemm", "rms_norm_gemm", "forward",
                 R"("axes": {"M": 700, "d": 1024}, "segments": ["512 none"])"},
        Replayed{"GemmSwiglu", "gemm_swiglu", "forward",
                 R"("axes": {"M": 300, "d": 512, "F": 768}, "norm": "same")"}),
    GpuReplays::name_of);

}  // namespace
}  // namespace tandem::tools
