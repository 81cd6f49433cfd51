// Runs a program under Nsight Compute.
#pragma once

#include <string>
#include <vector>

#include "cli/profile/counters.h"

namespace tandem::tools {

/// Path of ncu: `wanted` if it is not empty, else from PATH or where CUDA installs it. "" if there
/// is none.
std::string find_ncu(const std::string& wanted);

struct NcuProfile {
  std::string version;             // "2025.3.1.0"
  std::vector<Counters> launches;  // empty when there are no counters, and then
  std::string problem;             // says why
};

/// Profiles every kernel that `command` launches. `report` names the .ncu-rep file to leave behind;
/// "" leaves none.
NcuProfile profile_program(const std::string& ncu, const std::vector<std::string>& command,
                           const std::string& report);

}  // namespace tandem::tools
