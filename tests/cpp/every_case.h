// Every case tagged `check` of an op's table, on every variant that accepts it, against the fp64
// definition: outputs, guards around them, untouched inputs, equal bits of two runs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend.h"
#include "check.h"

namespace tandem::tools {

/// Returns the cases tagged `check`. Under the address sanitizer, where the definition takes ten
/// times as long, returns those tagged `sanitizer` and a quarter of the others.
inline std::vector<Case> cases_to_check(const std::string& op) {
  std::vector<Case> cases = select_cases(load_cases(op), "", "check");
#ifdef __SANITIZE_ADDRESS__
  int others = 0;
  std::erase_if(cases,
                [&](const Case& one) { return !one.tagged("sanitizer") && others++ % 4 != 0; });
#endif
  return cases;
}

/// Every direction that has cases to check.
inline void check_every_case(const std::string& op, DType dtype, Device device) {
  const auto cases = cases_to_check(op);
  for (const Operation& operation : operations()) {
    if (operation.name != op) continue;
    const bool on_cuda = device.type == DeviceType::kCuda;
    if (on_cuda && available_variants(operation, device).empty()) continue;  // no kernel yet
    int passed = 0, found = 0;
    for (const Case& one : cases) {
      if (!one.has_direction(operation.direction)) continue;
      if (std::count(one.dtypes.begin(), one.dtypes.end(), dtype) == 0) continue;
      ++found;
      for (const CheckResult& result : check_case(operation, one, dtype, {device}, 1)) {
        EXPECT_NE(result.outcome, Outcome::kFailed)
            << title(operation) << " " << result.case_name << " " << result.variant << ": "
            << result.detail;
        passed += result.outcome == Outcome::kPassed;
      }
    }
    EXPECT_GE(passed, found / 2) << title(operation);
  }
}

inline std::string dtype_name(const testing::TestParamInfo<DType>& info) {
  return to_string(info.param);
}

}  // namespace tandem::tools
