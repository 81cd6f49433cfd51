// What `tandem profile` prints.
#pragma once

#include <string>
#include <vector>

#include "measure.h"
#include "profile_log.h"

namespace tandem::tools {

/// Time, one line per launch, the total beside the floor, the reading. "-" stands for what was not
/// measured.
void print_profile(const Profile& profile, const std::vector<Counters>& launches,
                   const Ceilings& ceilings);

/// How the appended line compares with those before.
void print_iteration(const std::string& line);

/// "67.6 MB", of 1000s.
std::string bytes_text(double bytes);

}  // namespace tandem::tools
