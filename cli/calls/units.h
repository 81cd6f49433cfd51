// Times and rates for people: three digits, in the unit that fits the size.
#pragma once

#include <string>

namespace tandem::tools {

/// Returns "3.72 us", "61.5 ms".
std::string time_text(double us);

/// Returns "736 T", "1.20 G", for a unit to follow.
std::string rate_text(double per_second);

}  // namespace tandem::tools
