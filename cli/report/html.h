// The report as one HTML file that needs nothing else: no network, no library.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/report/tables.h"

namespace tandem::tools {

std::string to_html(const Table& table);

/// Renders the page. `iterations`: logs of tuning by op.
std::string html_report(
    const std::vector<ReportFile>& files,
    const std::map<std::string, std::vector<nlohmann::ordered_json>>& iterations);

}  // namespace tandem::tools
