// What `tandem profile` prints.
#pragma once

#include <string>
#include <vector>

#include "cli/calls/measure.h"
#include "cli/profile/log.h"

namespace tandem::tools {

/// Prints time, one line per launch, the total beside the floor, the reading. "-" stands for what
/// was not measured.
void print_profile(const Profile& profile, const std::vector<Counters>& launches,
                   const Ceilings& ceilings);

/// Prints how the appended line compares with those before.
void print_iteration(const std::string& line);

/// Returns "67.6 MB", in units of 1000.
std::string bytes_text(double bytes);

}  // namespace tandem::tools
