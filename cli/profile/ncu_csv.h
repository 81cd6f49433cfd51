// The CSV that `ncu --csv --page raw` prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/profile/counters.h"

namespace tandem::tools {

/// Splits one line into fields: handles quotes, doubled quotes inside them, a carriage return at
/// its end.
std::vector<std::string> parse_csv_line(std::string_view line);

/// Reads the counters of each launch, in order. Lines before the header (==PROF== and whatever the
/// program printed) are skipped, the row of units is used, numbers may have thousands separators,
/// columns may be in any order; a metric that is missing or no number is left out. Text without a
/// header gives nothing.
std::vector<Counters> parse_ncu_csv(std::string_view text);

/// Returns what ncu says went wrong: its first ==ERROR== line, or else its first ==WARNING==; ""
/// without any.
std::string ncu_complaint(std::string_view text);

}  // namespace tandem::tools
