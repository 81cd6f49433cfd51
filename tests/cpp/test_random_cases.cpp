// Random shapes, layouts, decays, states and packed sequences against the fp64 definitions, on
// every variant that accepts them: the same ones in every run. `tandem check --random` draws
// others.
#include "cli/cases/random_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"

namespace tandem::tools {
namespace {

TEST(DrawCase, TheSeedDecides) {
  const auto draw = [](std::uint64_t seed) {
    return draw_case("gla", "backward", DType::kFloat16, kLargestRandomCase, seed);
  };
  EXPECT_EQ(draw(7), draw(7));
  Case other = draw(8);
  other.name = draw(7).name;
  EXPECT_FALSE(draw(7) == other);
}

/// So that a failure can be run again from the line that it prints.
TEST(DrawCase, CasesCanBeWrittenAndReadBack) {
  for (const Operation& operation : operations()) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const Case one = draw_case(operation.name, operation.direction, DType::kBFloat16,
                                 kLargestRandomCase, seed);
      const std::string table = write_cases(operation.name, {one});
      EXPECT_EQ(parse_cases(operation.name, table, "drawn"), std::vector{one}) << table;
      std::int64_t size = 1;
      for (const auto& [axis, extent] : one.axes)
        size *= multiplies(axis) ? std::max<std::int64_t>(extent, 1) : 1;
      EXPECT_LE(size, kLargestRandomCase) << table;
    }
  }
}

class RandomCases : public testing::TestWithParam<const Operation*> {};

void check(const Operation& operation, const std::vector<DType>& dtypes, Device device,
           std::uint64_t count) {
  const char* every = std::getenv("TANDEM_TEST_EVERY");  // under sanitizers
  if (every != nullptr) count /= std::max(std::atoi(every), 1);
  int passed = 0;
  for (const DType dtype : dtypes) {
    for (std::uint64_t seed = 0; seed < count; ++seed) {
      const Case one =
          draw_case(operation.name, operation.direction, dtype, kLargestRandomCase, seed);
      for (const CheckResult& result : check_case(operation, one, dtype, {device}, 1)) {
        EXPECT_NE(result.outcome, Outcome::kFailed)
            << title(operation) << " " << to_string(dtype) << " " << result.variant << ": "
            << result.detail << "\n"
            << write_cases(operation.name, {one});
        passed += result.outcome == Outcome::kPassed;
      }
    }
  }
  EXPECT_GE(passed, static_cast<int>(dtypes.size() * count) / 2);
}

TEST_P(RandomCases, MatchTheDefinition) {
  check(*GetParam(), {DType::kBFloat16, DType::kFloat16, DType::kFloat32}, Device::cpu(), 40);
}

using GpuRandomCases = RandomCases;
TEST_P(GpuRandomCases, MatchTheDefinition) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  check(*GetParam(), {DType::kBFloat16, DType::kFloat16}, Device::cuda(), 60);
}

std::vector<const Operation*> entries() {
  std::vector<const Operation*> all;
  for (const Operation& operation : operations()) all.push_back(&operation);
  return all;
}
std::string entry_name(const testing::TestParamInfo<const Operation*>& info) {
  return std::string(info.param->name) + "_" + info.param->direction;
}
INSTANTIATE_TEST_SUITE_P(Cpu, RandomCases, testing::ValuesIn(entries()), entry_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GpuRandomCases, testing::ValuesIn(entries()), entry_name);

}  // namespace
}  // namespace tandem::tools
