// The table of docs/ops/linear_scan.log.md: the op by three kernels, by two, and by one.
#pragma once

#include <string>
#include <vector>

#include "cli/report/tables.h"

namespace tandem::tools {

/// A line per size of linear_scan's sweep and of b8_t4096_d1024 that one run timed by the baseline
/// `unfused` and by Tandem. All times of a line are of that run but gated_scan's, which is of its
/// own file and stands beside what it may take.
Table kernels_table(const std::vector<ReportFile>& files, const std::string& device);

/// Renders what stands between the marks of docs/ops/linear_scan.log.md.
std::string kernels_block(const std::vector<ReportFile>& files);

}  // namespace tandem::tools
