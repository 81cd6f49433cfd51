// The table of the front page: a line for each case tagged front, whatever its op.
#pragma once

#include <string>
#include <vector>

#include "cli/report/tables.h"

namespace tandem::tools {

/// Makes the table of one device, in bf16: forward, forward and backward, and step, each with the
/// fastest peer.
Table front_table(const std::vector<ReportFile>& files, const std::string& device);

/// Renders what stands between the marks of README.md: the table of the device that has the most
/// rows.
std::string front_block(const std::vector<ReportFile>& files);

}  // namespace tandem::tools
