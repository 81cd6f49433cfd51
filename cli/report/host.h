// The tables of docs/host.md: what the host does for a call.
#pragma once

#include <string>
#include <vector>

#include "cli/report/tables.h"

namespace tandem::tools {

/// Reads every `<folder>/<device>/host/<name>.json`, in order of their names. Files of a device
/// have ids of runs of their own there.
std::vector<ReportFile> load_host(const std::string& folder);

/// Makes the table of a file, each call by the latest run that timed it. Ratios are of two times of
/// one run: to torch.add and, of forward and backward, to an autograd.Function that computes
/// nothing. Columns that no row fills are left out.
Table host_table(const ReportFile& file);

/// Renders what stands between the marks of docs/host.md.
std::string host_block(const std::vector<ReportFile>& files);

}  // namespace tandem::tools
