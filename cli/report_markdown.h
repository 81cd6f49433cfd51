// The Markdown tables: docs/results.md and a block of README.md.
#pragma once

#include <string>
#include <vector>

#include "report_tables.h"

namespace tandem::tools {

std::string to_markdown(const Table& table);

/// The line of a list that says where a run's numbers come from.
std::string markdown_run(const ReportRun& run);

/// What stands between the markers.
std::string markdown_block(const std::vector<ReportFile>& files, Detail detail);

/// `text` with `block` between the lines <!-- results:begin --> and <!-- results:end -->. Throws
/// std::runtime_error naming `file` when it lacks them.
std::string with_block(const std::string& text, const std::string& block, const std::string& file);

}  // namespace tandem::tools
