// gla_step beyond its cases: a sequence in steps against the same sequence at once, NaN, and equal
// bits. test_every_case.cpp runs the cases.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "cli/calls/check.h"
#include "cli/ops/gla.h"
#include "planting.h"

namespace tandem::tools {
namespace {

Case parse(const std::string& fields) {
  return parse_cases("gla", R"([{"name": "a", )" + fields + R"(, "tags": []}])", "test")[0];
}

TensorSet make_step(const std::string& fields, DType dtype, std::uint64_t seed) {
  return make_gla_step(parse(R"("directions": ["step"], )" + fields), dtype, seed);
}

/// Token t of a tensor [B,T,...] of the whole sequence, to the step's [B,...] (or back).
void copy_token(const TensorSet& whole, Buffers& whole_buffers, const TensorSet& step,
                Buffers& step_buffers, const char* name, std::int64_t t, bool back) {
  const NamedTensor& from = whole.get(name);
  const NamedTensor& to = step.get(name);
  std::byte* whole_data = whole_buffers[from.buffer].data() + from.offset;
  std::byte* step_data = step_buffers[to.buffer].data() + to.offset;
  const std::int64_t bytes = from.shape.product() / from.shape[0] / from.shape[1] *
                             size_of(from.dtype);  // of one token, contiguous
  for (std::int64_t b = 0; b < from.shape[0]; ++b) {
    std::byte* token = whole_data + b * from.strides[0] * size_of(from.dtype) + t * bytes;
    std::byte* one = step_data + b * bytes;
    std::memcpy(back ? token : one, back ? one : token, bytes);
  }
}

/// A sequence of T tokens, one gla_step each, must give what gla_forward must give.
void check_steps(const std::string& decay, DType dtype, Device device) {
  constexpr std::int64_t T = 70;
  const std::string axes = R"("H": 4, "HQ": 2, "K": 40, "V": 72}, "dtype": ["bf16"], "decay": )";
  const TensorSet whole = make_gla(
      parse(R"("axes": {"B": 2, "T": 70, )" + axes + decay + R"(, "states": "both")"), dtype, 3);
  const TensorSet step = make_step(R"("axes": {"B": 2, )" + axes + decay, dtype, 3);
  Buffers sequence = clone(whole.buffers), token = clone(step.buffers);
  const auto bytes_of = [](const TensorSet& set, Buffers& buffers, const char* name) {
    const NamedTensor& tensor = set.get(name);
    return buffers[tensor.buffer].data() + tensor.offset;
  };
  const std::int64_t state_bytes = span_bytes(step.get("state"));
  std::memcpy(bytes_of(step, token, "state"), bytes_of(whole, sequence, "initial_state"),
              state_bytes);
  const bool constant = step.find("log_decay") && step.get("log_decay").shape.rank() == 1;
  if (constant) {
    std::memcpy(bytes_of(step, token, "log_decay"), bytes_of(whole, sequence, "log_decay"),
                span_bytes(step.get("log_decay")));
  }
  for (std::int64_t t = 0; t < T; ++t) {
    for (const char* name : {"q", "k", "v", "log_decay"}) {
      if (!step.find(name) || (constant && name == std::string("log_decay"))) continue;
      copy_token(whole, sequence, step, token, name, t, false);
    }
    token = run(find_operation("gla", "step"), step, token, device);
    copy_token(whole, sequence, step, token, "o", t, true);
  }
  std::memcpy(bytes_of(whole, sequence, "final_state"), bytes_of(step, token, "state"),
              state_bytes);
  const auto errors = expect_gla(whole, false)->compare(whole, sequence);
  ASSERT_EQ(errors.size(), 2u);
  for (const OutputError& error : errors) {
    EXPECT_TRUE(error.passed) << decay << " " << to_string(dtype) << ": " << describe(errors);
  }
}

void check_steps(Device device) {
  for (const char* decay :
       {R"({"kind": "none"})", R"({"kind": "constant", "distribution": "reset"})",
        R"({"kind": "per_token", "distribution": "normal"})",
        R"({"kind": "per_token", "distribution": "reset"})"}) {
    check_steps(decay, DType::kBFloat16, device);
    check_steps(decay, DType::kFloat16, device);
  }
}

/// A NaN or inf anywhere stays in its batch and head, and -inf forgets it.
void check_nan(Device device) {
  for (const char* state : {"fp32", "bf16"}) {
    TensorSet set = make_step(
        R"("axes": {"B": 3, "H": 2, "K": 40, "V": 72}, "dtype": ["bf16"],
             "decay": {"kind": "per_token", "distribution": "normal"}, "state_dtype": ")" +
            std::string(state) + '"',
        DType::kBFloat16, 5);
    const auto plant = [&](Buffers& buffers, const char* name, std::int64_t head, float value) {
      const NamedTensor& tensor = set.get(name);
      const std::int64_t index =
          head / 2 * tensor.strides[0] + head % 2 * tensor.strides[1];  // its first element
      store(tensor.dtype, buffers[tensor.buffer].data() + tensor.offset, index, value);
    };
    const Buffers clean = run(find_operation("gla", "step"), set, set.buffers, device);
    const auto same = [&](const Buffers& dirty, const char* name, std::int64_t head) {
      const NamedTensor& tensor = set.get(name);
      const std::int64_t size = tensor.shape.product() / 6;
      return !differs(tensor, head * size, size, clean, dirty);
    };
    constexpr std::int64_t kHead = 3;
    for (const char* name : {"q", "k", "v", "log_decay", "state"}) {
      for (const float value : {kNaN, kInf}) {
        Buffers inputs = clone(set.buffers);
        plant(inputs, name, kHead, value);
        const Buffers dirty = run(find_operation("gla", "step"), set, inputs, device);
        for (std::int64_t head = 0; head < 6; ++head) {
          EXPECT_EQ(same(dirty, "o", head), head != kHead) << name << ' ' << value << ' ' << head;
          EXPECT_TRUE(head == kHead || same(dirty, "state", head)) << name << ' ' << value;
        }
      }
    }
    plant(set.buffers, "log_decay", kHead, -kInf);
    plant(set.buffers, "state", kHead, kNaN);
    const Buffers after = run(find_operation("gla", "step"), set, set.buffers, device);
    for (const OutputError& error : expect_gla_step(set, false)->compare(set, after)) {
      EXPECT_TRUE(error.passed) << error.output << " after forgetting a NaN: " << error.value;
    }
  }
}

TEST(GlaStep, ASequenceInStepsIsTheSequence) { check_steps(Device::cpu()); }

TEST(GlaStep, NanStaysInItsHeadAndIsForgotten) { check_nan(Device::cpu()); }

/// Threads share heads, or columns of heads where those are few: the bits are the same.
TEST(GlaStep, ThreadsDoNotChangeTheBits) {
  const TensorSet set = make_step(
      R"("axes": {"B": 1, "H": 3, "K": 70, "V": 200}, "dtype": ["fp16"],
           "decay": {"kind": "per_token", "distribution": "normal"})",
      DType::kFloat16, 7);
  const auto run_once = [&] {
    return run(find_operation("gla", "step"), set, set.buffers, Device::cpu());
  };
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Buffers one = run_once();
  for (const int count : {2, 3, 7}) {
    omp_set_num_threads(count);
    EXPECT_EQ(find_difference(set, one, run_once()), "");
  }
  omp_set_num_threads(threads);
}

class GpuGlaStep : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = cuda_missing_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(GpuGlaStep, ASequenceInStepsIsTheSequence) { check_steps(Device::cuda()); }

TEST_F(GpuGlaStep, NanStaysInItsHeadAndIsForgotten) { check_nan(Device::cuda()); }

TEST_F(GpuGlaStep, ManyRunsGiveTheSameBits) {
  const TensorSet set = make_step(
      R"("axes": {"B": 16, "H": 8, "K": 256, "V": 128}, "dtype": ["bf16"],
           "decay": {"kind": "per_token", "distribution": "normal"})",
      DType::kBFloat16, 7);
  const Buffers first = run(find_operation("gla", "step"), set, set.buffers, Device::cuda());
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(find_difference(set, first,
                              run(find_operation("gla", "step"), set, set.buffers, Device::cuda())),
              "");
  }
}

}  // namespace
}  // namespace tandem::tools
