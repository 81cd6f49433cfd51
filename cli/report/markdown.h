// The Markdown tables of docs/results.md and docs/ops.
#pragma once

#include <string>
#include <vector>

#include "cli/report/tables.h"

namespace tandem::tools {

std::string to_markdown(const Table& table);

/// Renders an item of a list, in lines of at most 118 columns where its words allow it.
std::string markdown_item(const std::string& text);

/// Renders where the numbers of runs come from: a line for each run, and what several share.
std::string markdown_runs(const std::vector<const ReportRun*>& runs);

/// Renders what stands between the marks of docs/results.md.
std::string markdown_block(const std::vector<ReportFile>& files);

/// Renders the lines of one op's tuning log, a table for each case, dtype and device.
std::string markdown_iterations(const std::vector<nlohmann::ordered_json>& lines);

/// Returns `text` with `block` between the lines <!-- name:begin --> and <!-- name:end -->. Throws
/// std::runtime_error naming `file` when it lacks them.
std::string with_block(const std::string& text, const std::string& block, const std::string& file,
                       const std::string& name = "results");

}  // namespace tandem::tools
