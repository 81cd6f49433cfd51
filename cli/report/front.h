// The table of the front page: a line for each case tagged front, whatever its op.
#pragma once

#include <string>
#include <vector>

#include "cli/report/tables.h"

namespace tandem::tools {

/// Makes the table of one device, in bf16: one call forward (of a step: of one token), and forward
/// with backward, each with its time over the floor and its fastest peer.
Table front_table(const std::vector<OpReport>& ops, const std::string& device);

/// Renders what stands between the marks of README.md: the table of the device that has the most
/// rows.
std::string front_block(const std::vector<ReportFile>& files);

}  // namespace tandem::tools
