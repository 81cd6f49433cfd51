// Checks that a call gives the same bits whatever else the GPU does: repeated beside a busy stream,
// called or replayed as a graph. And that a replay goes by the cu_seqlens that are in memory at
// that time.
#pragma once

#include <gtest/gtest.h>

#include "cli/calls/operation.h"
#include "device_call.h"

namespace tandem::tools {

/// A test's call, and the one that keeps the other stream busy.
struct RepeatedCall {
  const Operation& operation;
  Case one;
  const Operation& load_operation;
  Case load;
};

/// `repeat` enqueues the call in some way; each time beside a different amount of other work.
template <class Repeat>
void expect_same_bits(DeviceCall& call, DeviceCall& load, cudaStream_t stream,
                      const Repeat& repeat) {
  constexpr int kRepeats = 100;
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

inline void expect_same_bits_of_calls(const RepeatedCall& repeated) {
  DeviceCall call(repeated.operation, repeated.one);
  DeviceCall load(repeated.load_operation, repeated.load);
  const SideStream stream;
  expect_same_bits(call, load, stream.handle, [&] { call.enqueue(stream.handle); });
}

inline void expect_same_bits_of_replays(const RepeatedCall& repeated) {
  DeviceCall call(repeated.operation, repeated.one);
  DeviceCall load(repeated.load_operation, repeated.load);
  const SideStream stream;
  Graph graph(call, stream.handle);
  expect_same_bits(call, load, stream.handle, [&] { graph.replay(stream.handle); });
}

/// `one`: 3000 tokens in 6 sequences.
inline void expect_replays_to_go_by_offsets(const Operation& operation, Case one) {
  SCOPED_TRACE(title(operation));
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

/// A call's direction and shape, "forwardFewHeads".
struct NamedShape {
  const Operation* operation;
  const char* name;
  const char* fields;  // of a case
};
inline void PrintTo(const NamedShape& shape, std::ostream* out) { *out << shape.name; }

inline std::vector<NamedShape> with_operations(std::initializer_list<const Operation*> operations,
                                               const std::vector<NamedShape>& shapes) {
  std::vector<NamedShape> all;
  for (const Operation* operation : operations) {
    for (const NamedShape& shape : shapes) all.push_back({operation, shape.name, shape.fields});
  }
  return all;
}

/// Tests with a NamedShape for their parameter, on a GPU.
class GpuSameBits : public testing::TestWithParam<NamedShape> {
 public:
  static std::string name_of(const testing::TestParamInfo<NamedShape>& info) {
    return std::string(info.param.operation->direction) + info.param.name;
  }

 protected:
  void SetUp() override {
    const std::string reason = cuda_missing_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace tandem::tools
