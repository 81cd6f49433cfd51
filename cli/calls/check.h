// Checking one case against the fp64 definition on every variant that accepts it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "tandem/device.h"

namespace tandem::tools {

enum class Outcome { kPassed, kFailed, kSkipped };

struct CheckResult {
  std::string direction;
  std::string case_name;
  DType dtype;
  std::string backend;
  std::string variant;
  Outcome outcome;
  std::string detail;  // what failed, or why it was skipped
  std::vector<OutputError> errors;
};

/// One result per variant that accepts the case in the entry's direction; where none does, one that
/// is skipped when the case is tagged `later`, its dtype is not for the backend, or CUDA has no
/// kernel of the entry yet, and failed otherwise.
///
/// A variant passes when outputs are within their limits of the definition, all that was not to be
/// written (inputs, guards, gaps) is untouched, and a second run gives the same bits; with `once`
/// there is no second run.
std::vector<CheckResult> check_case(const Operation& operation, const Case& one, DType dtype,
                                    const std::vector<Device>& devices, std::uint64_t seed,
                                    bool once = false);

/// Describes `errors` beside their limits: "o 2.1e-03 <= 3.0e-03 (worst head 4.0e-03 <= 1.2e-02)".
std::string describe(const std::vector<OutputError>& errors);

}  // namespace tandem::tools
