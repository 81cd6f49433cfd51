// The Markdown tables: docs/results.md and a block of README.md.
#pragma once

#include <string>
#include <vector>

#include "report_tables.h"

namespace tandem::tools {

std::string to_markdown(const Table& table);

/// Renders the line of a list that says where a run's numbers come from.
std::string markdown_run(const ReportRun& run);

/// Renders what stands between the markers.
std::string markdown_block(const std::vector<ReportFile>& files, Detail detail);

/// Renders the lines of one op's tuning log, a table for each case, dtype and device.
std::string markdown_iterations(const std::vector<nlohmann::ordered_json>& lines);

/// Returns `text` with `block` between the lines <!-- name:begin --> and <!-- name:end -->. Throws
/// std::runtime_error naming `file` when it lacks them.
std::string with_block(const std::string& text, const std::string& block, const std::string& file,
                       const std::string& name = "results");

}  // namespace tandem::tools
