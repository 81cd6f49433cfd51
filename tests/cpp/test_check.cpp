// The checker itself: a call that does one thing wrong must fail its check.
#include "cli/calls/check.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <limits>

#include "cli/calls/measure.h"
#include "cli/ops/gla.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

enum class Fault {
  kNone,
  kWritesNothing,
  kOneNaN,
  kTooLarge,
  kOneHeadWrong,
  kBeforeOutput,
  kAfterOutput,
  kGap,
  kInput,
  kUnrepeatable,
  kReadsUnwritten,
  kRefuses,
  kThrows
};
Fault g_fault;

void faulty_call(bench::CallArguments arguments, const Context& context) {
  const auto& args = *static_cast<const GlaForwardArgs*>(arguments.front().get());
  if (g_fault == Fault::kWritesNothing) return;
  if (g_fault == Fault::kRefuses) throw Unsupported("cannot");
  if (g_fault == Fault::kThrows) throw CudaError("fell over");
  gla_forward(args, context);
  const TensorView& o = args.o;
  auto* data = static_cast<std::byte*>(o.data);
  const auto change = [&](std::int64_t index, float factor) {
    store(o.dtype, data, index, load(o.dtype, data, index) * factor);
  };
  const NamedTensor named{"o", o.dtype, o.shape, o.strides};
  static std::atomic<int> calls = 0;
  switch (g_fault) {
    case Fault::kOneNaN: store(o.dtype, data, 5, std::numeric_limits<float>::quiet_NaN()); break;
    case Fault::kTooLarge:
      for_each_element(named, [&](std::int64_t offset, std::int64_t) { change(offset, 1.01f); });
      break;
    case Fault::kOneHeadWrong:
      for (std::int64_t t = 0; t < o.shape[1]; ++t) change(t * o.strides[1] + o.strides[2], 1.2f);
      break;
    case Fault::kBeforeOutput: data[-1] = std::byte{0}; break;
    case Fault::kAfterOutput: data[span_bytes(named)] = std::byte{0}; break;
    case Fault::kGap: data[o.shape[3] * size_of(o.dtype)] = std::byte{0}; break;
    case Fault::kInput: *static_cast<std::byte*>(args.q.data) ^= std::byte{1}; break;
    case Fault::kReadsUnwritten:
      if (context.workspace.data == nullptr) break;
      change(0, load(DType::kFloat32, context.workspace.data, 0));
      break;
    case Fault::kUnrepeatable: data[0] ^= static_cast<std::byte>(calls++ & 1); break;
    default: break;
  }
}

Baseline faulty() {
  const auto workspace_bytes = [](bench::CallArguments) { return sizeof(float); };
  return {"faulty", "faulty", {&gla_forward_signature()}, faulty_call, workspace_bytes};
}

CheckResult check_with(Fault fault, bool once = false) {
  const Operation operation = with_baseline(find_operation("gla"), faulty());
  g_fault = fault;
  const Case one = select_cases(load_cases("gla"), "strides_odd_d64", "")[0];
  return check_case(operation, one, DType::kFloat16, {Device::cpu()}, 1, once).front();
}

TEST(Check, AGoodCallPasses) {
  const CheckResult result = check_with(Fault::kNone);
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.detail;
  EXPECT_EQ(result.errors.size(), 2u);
}

TEST(Check, EveryFaultIsFound) {
  const std::pair<Fault, const char*> faults[] = {
      {Fault::kWritesNothing, "o nan"},
      {Fault::kOneNaN, "o nan"},
      {Fault::kTooLarge, "o 1.0e-02"},
      {Fault::kOneHeadWrong, "worst head"},
      {Fault::kBeforeOutput, "o changed outside the outputs: byte -1"},
      {Fault::kAfterOutput, "o changed outside the outputs: byte"},
      {Fault::kGap, "o changed outside the outputs: byte 128"},
      {Fault::kInput, "q changed outside the outputs: byte 0"},
      {Fault::kUnrepeatable, "two runs differ in o: byte 0"},
      {Fault::kReadsUnwritten, "two runs differ in o: byte 0"},
      {Fault::kRefuses, "cannot"},
      {Fault::kThrows, "fell over"},
  };
  for (const auto& [fault, text] : faults) {
    const CheckResult result = check_with(fault);
    EXPECT_EQ(result.outcome, Outcome::kFailed) << text;
    EXPECT_NE(result.detail.find(text), std::string::npos) << text << " not in " << result.detail;
  }
}

TEST(Check, OneRunFindsAllButItsRepeatability) {
  const auto outcome = [](Fault fault) { return check_with(fault, true).outcome; };
  for (const Fault fault : {Fault::kWritesNothing, Fault::kTooLarge, Fault::kGap, Fault::kInput}) {
    EXPECT_EQ(outcome(fault), Outcome::kFailed);
  }
  EXPECT_EQ(outcome(Fault::kUnrepeatable), Outcome::kPassed);
}

TEST(Check, EveryOutputMustBeCompared) {
  class Nothing : public Expectation {
    std::vector<OutputError> compare(const TensorSet&, const Buffers&) const override { return {}; }
  };
  Operation operation = find_operation("gla");
  operation.expect = [](const TensorSet&, bool) { return std::make_unique<Nothing>(); };
  const Case one = select_cases(load_cases("gla"), "t63_h1_d64", "")[0];
  const CheckResult result = check_case(operation, one, DType::kBFloat16, {Device::cpu()}, 1)[0];
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.detail, "o is not compared");
}

TEST(Check, EveryTensorMustBeOfACall) {
  Operation operation = find_operation("gla");
  operation.make = [](const Case& one, DType dtype, std::uint64_t seed) {
    TensorSet set = find_operation("gla").make(one, dtype, seed);
    add_tensor(set, "stranger", dtype, {1}, {1}, false);
    return set;
  };
  const Case one = select_cases(load_cases("gla"), "t63_h1_d64", "")[0];
  EXPECT_EQ(check_case(operation, one, DType::kBFloat16, {Device::cpu()}, 1)[0].detail,
            "stranger is of no call");
}

TEST(Check, NoFp32OnCuda) {
  const Case one = select_cases(load_cases("gla"), "t63_h1_d64", "")[0];
  const auto results = check_case(find_operation("gla"), one, DType::kFloat32, {Device::cuda()}, 1);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].outcome, Outcome::kSkipped);
}

TEST(Check, ACallOfSeveralFunctionsIsTheLibrarysChoice) {
  const Case one = select_cases(load_cases("gla"), "saved_states_both", "")[0];
  const auto results = check_case(find_operation("gla", "forward_backward"), one, DType::kBFloat16,
                                  {Device::cpu()}, 1);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].variant, kLibraryChoice);
  EXPECT_EQ(results[0].outcome, Outcome::kPassed) << results[0].detail;
  std::vector<std::string> outputs;
  for (const OutputError& error : results[0].errors) outputs.push_back(error.output);
  EXPECT_THAT(outputs, testing::UnorderedElementsAreArray(
                           find_operation("gla", "forward_backward").outputs()));
}

/// Sampling keeps first and last heads, and finds an error in a sampled one.
TEST(Check, SampledHeads) {
  Case one = select_cases(load_cases("gla"), "many_heads_h75", "")[0];
  one.tags = {"large"};
  g_fault = Fault::kTooLarge;
  const Operation operation = with_baseline(find_operation("gla"), faulty());
  EXPECT_EQ(check_case(operation, one, DType::kBFloat16, {Device::cpu()}, 1)[0].outcome,
            Outcome::kFailed);
}

TEST(Measure, Quantiles) {
  const Timing timing = summarize({5, 1, 4, 2, 3, 6, 7, 8, 9, 10, 11});
  EXPECT_DOUBLE_EQ(timing.median_us, 6);
  EXPECT_DOUBLE_EQ(timing.p10_us, 2);
  EXPECT_DOUBLE_EQ(timing.p90_us, 10);
  EXPECT_DOUBLE_EQ(summarize({3}).median_us, 3);
}

TEST(Measure, FloorIsTheLargerOfBytesAndFlops) {
  const Ceilings ceilings{2, 100};
  EXPECT_DOUBLE_EQ(floor_us({4e6, 0}, ceilings), 2);
  EXPECT_DOUBLE_EQ(floor_us({4e6, 1e9}, ceilings), 10);
}

}  // namespace
}  // namespace tandem::tools
