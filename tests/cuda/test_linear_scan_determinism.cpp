// linear_scan_forward and linear_scan_backward give the same bits whatever else the GPU does: 100
// calls beside a busy stream, 100 replays of a captured graph. A replay goes by the cu_seqlens that
// are in memory at that time.
#include <gtest/gtest.h>

#include <tuple>

#include "device_call.h"
#include "operation.h"

namespace tandem::tools {
namespace {

constexpr int kRepeats = 100;

Case parse(const std::string& fields) {
  return parse_cases("linear_scan",
                     R"([{"name": "a", "dtype": ["bf16"], "states": "both", "tags": [],
                          "decay": {"kind": "log_decay", "distribution": "normal_bench"}, )" +
                         fields + "}]",
                     "test")[0];
}

struct Shape {
  const char* name;
  const char* fields;
};

// One for each tiling, and one that TMA cannot read.
constexpr Shape kShapes[] = {
    {"Chains", R"("axes": {"B": 8, "T": 1000, "d": 128, "D": 1024})"},
    {"SmallTiles", R"("axes": {"B": 4, "T": 8192, "d": 256, "D": 64})"},
    {"OddChannels", R"("axes": {"B": 3, "T": 1000, "d": 33, "D": 77})"},
    {"ManySequences", R"("axes": {"B": 1, "T": 20000, "d": 40, "D": 200}, "lengths": {
        "distribution": "log_uniform", "sequences": 100, "smallest": 1, "largest": 2000})"}};

class GpuLinearScanDeterminism
    : public testing::TestWithParam<std::tuple<const Operation*, Shape>> {
 protected:
  void SetUp() override {
    const std::string reason = cuda_missing_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  static DeviceCall make_call() {
    const auto& [operation, shape] = GetParam();
    return {*operation, parse(shape.fields)};
  }

  /// `repeat` enqueues the call in some way; each time beside a different amount of other work.
  template <class Repeat>
  static void expect_same_bits(DeviceCall& call, cudaStream_t stream, const Repeat& repeat) {
    DeviceCall load(kLinearScanForward, parse(R"("axes": {"B": 4, "T": 4096, "d": 256, "D": 64})"));
    const SideStream busy;
    call.poison(stream);
    repeat();
    const Buffers first = call.results();
    const auto errors = call.compare(first, true);
    for (const OutputError& error : errors) ASSERT_TRUE(error.passed) << describe(errors);
    for (int i = 0; i < kRepeats; ++i) {
      for (int j = 0; j < 1 + i % 5; ++j) load.enqueue(busy.handle);
      call.poison(stream);
      repeat();
      ASSERT_EQ(find_difference(call.set(), first, call.results()), "") << "repeat " << i;
    }
  }
};

TEST_P(GpuLinearScanDeterminism, CallsBesideABusyStream) {
  DeviceCall call = make_call();
  const SideStream stream;
  expect_same_bits(call, stream.handle, [&] { call.enqueue(stream.handle); });
}

TEST_P(GpuLinearScanDeterminism, ReplaysOfAGraph) {
  DeviceCall call = make_call();
  const SideStream stream;
  Graph graph(call, stream.handle);
  expect_same_bits(call, stream.handle, [&] { graph.replay(stream.handle); });
}

std::string name_of(const testing::TestParamInfo<GpuLinearScanDeterminism::ParamType>& info) {
  return std::string(std::get<0>(info.param)->direction) + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Cuda, GpuLinearScanDeterminism,
                         testing::Combine(testing::Values(&kLinearScanForward,
                                                          &kLinearScanBackward),
                                          testing::ValuesIn(kShapes)),
                         name_of);

void check_replays(const Operation& operation) {
  Case one = parse(R"("axes": {"B": 1, "T": 3000, "d": 64, "D": 136},
                      "lengths": {"distribution": "equal", "sequences": 6})");
  DeviceCall replayed(operation, one);
  const SideStream stream;
  Graph graph(replayed, stream.handle);
  const std::vector<std::int32_t> contents[] = {{0, 500, 1000, 1500, 2000, 2500, 3000},
                                                {0, 0, 1, 64, 65, 2990, 3000},
                                                {0, 3000, 3000, 3000, 3000, 3000, 3000},
                                                {100, 100, 130, 1000, 1000, 1064, 2900},
                                                {5, 5, 5, 5, 5, 5, 5},
                                                {0, 500, 1000, 1500, 2000, 2500, 3000}};
  for (const auto& offsets : contents) {
    one.cu_seqlens = offsets;
    DeviceCall direct(operation, one);
    direct.enqueue(stream.handle);
    replayed.replace("cu_seqlens", direct.set());
    replayed.poison(stream.handle);
    graph.replay(stream.handle);
    const Buffers after = replayed.results();
    const auto errors = direct.compare(after, false);
    for (const OutputError& error : errors) {
      EXPECT_TRUE(error.passed) << testing::PrintToString(offsets) << ": " << describe(errors);
    }
    EXPECT_EQ(find_difference(direct.set(), direct.results(), after), "")
        << testing::PrintToString(offsets);
  }
}

TEST(GpuLinearScanGraph, ReplaysGoByTheOffsetsInMemory) {
  if (const std::string reason = cuda_missing_reason(); !reason.empty()) GTEST_SKIP() << reason;
  for (const Operation* operation : {&kLinearScanForward, &kLinearScanBackward}) {
    SCOPED_TRACE(title(*operation));
    check_replays(*operation);
  }
}

}  // namespace
}  // namespace tandem::tools
