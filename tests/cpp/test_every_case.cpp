// Every case tagged `check` of every op's table, on every variant that accepts it, against the fp64
// definition: outputs, guards around them, untouched inputs, equal bits of two runs. One test per
// direction of an op and dtype.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"

namespace tandem::tools {
namespace {

struct Slice {
  const Operation* operation;
  DType dtype;
};

bool is_of(const Case& one, const Slice& slice) {
  return one.has_direction(slice.operation->direction) &&
         std::count(one.dtypes.begin(), one.dtypes.end(), slice.dtype) > 0;
}

/// TANDEM_TEST_EVERY=N takes the cases tagged `sanitizer` and every Nth of the others: tests under
/// sanitizers are slow.
std::vector<Case> cases_of(const Slice& slice) {
  std::vector<Case> cases = select_cases(load_cases(slice.operation->name), "", "check");
  std::erase_if(cases, [&](const Case& one) { return !is_of(one, slice); });
  const char* variable = std::getenv("TANDEM_TEST_EVERY");
  const int every = variable == nullptr ? 1 : std::atoi(variable);
  int others = 0;
  std::erase_if(cases, [&](const Case& one) {
    return !one.tagged("sanitizer") && others++ % std::max(every, 1) != 0;
  });
  return cases;
}

/// Those that have cases.
std::vector<Slice> slices(bool on_cuda) {
  std::vector<Slice> all;
  std::string op;
  std::vector<Case> cases;
  for (const Operation& operation : operations()) {
    if (op != operation.name) cases = select_cases(load_cases(op = operation.name), "", "check");
    for (const DType dtype :
         {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
      if (on_cuda && !operation.runs_on_cuda(dtype)) continue;
      const Slice slice{&operation, dtype};
      if (std::any_of(cases.begin(), cases.end(),
                      [&](const Case& one) { return is_of(one, slice); })) {
        all.push_back(slice);
      }
    }
  }
  return all;
}

/// "gla_forward_bf16"
std::string slice_name(const testing::TestParamInfo<Slice>& info) {
  const Slice& slice = info.param;
  return std::string(slice.operation->name) + "_" + slice.operation->direction + "_" +
         to_string(slice.dtype);
}

void check(const Slice& slice, Device device) {
  const bool unwritten = available_variants(*slice.operation, device).empty();
  if (device.type == DeviceType::kCuda && unwritten) GTEST_SKIP() << "no kernel yet";
  std::size_t passed = 0;
  const std::vector<Case> cases = cases_of(slice);
  for (const Case& one : cases) {
    for (const CheckResult& result : check_case(*slice.operation, one, slice.dtype, {device}, 1)) {
      EXPECT_NE(result.outcome, Outcome::kFailed)
          << title(*slice.operation) << " " << result.case_name << " " << result.variant << ": "
          << result.detail;
      passed += result.outcome == Outcome::kPassed;
    }
  }
  EXPECT_GE(passed, cases.size() / 2);
  std::printf("%zu cases, %zu checks passed\n", cases.size(), passed);
}

class EveryCase : public testing::TestWithParam<Slice> {};
TEST_P(EveryCase, MatchesTheDefinition) { check(GetParam(), Device::cpu()); }
INSTANTIATE_TEST_SUITE_P(Cpu, EveryCase, testing::ValuesIn(slices(false)), slice_name);

class GpuEveryCase : public testing::TestWithParam<Slice> {};
TEST_P(GpuEveryCase, MatchesTheDefinition) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  check(GetParam(), Device::cuda());
}
INSTANTIATE_TEST_SUITE_P(Cuda, GpuEveryCase, testing::ValuesIn(slices(true)), slice_name);

}  // namespace
}  // namespace tandem::tools
