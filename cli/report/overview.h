// The first table of the report: each op and direction in one line.
#pragma once

#include <string>
#include <vector>

#include "cli/report/data.h"

namespace tandem::tools {

/// Renders, of one device, a line per op and direction with the geometric means of time over floor
/// and of the fastest peer's time over Tandem's, each beside a dot per case.
std::string overview_html(const std::vector<OpReport>& ops, const std::string& device);

/// Returns where a section is on the page: "gla-forward-nvidia-h200".
std::string section_id(const OpSection& section, const std::string& device);

}  // namespace tandem::tools
