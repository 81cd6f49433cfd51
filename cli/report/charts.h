// The charts of a report. Each shows times of one run only, so that whatever is read off it was
// formed within that run; "" when there is nothing to show.
#pragma once

#include <string>

#include "cli/report/data.h"

namespace tandem::tools {

/// Returns the runs that the section's times are of, in order of appearance.
std::vector<std::string> runs_of(const OpSection& section);

/// Draws matrix rate against flops per byte, under the ceilings of the run, a point per case and
/// dtype.
std::string roofline_chart(const ReportFile& file, const OpSection& section,
                           const std::string& run);

/// Draws time against T, log-log, a line for each set of other axes. Axes come from the case table
/// that the program was built with; cases that it lacks are left out.
std::string length_chart(const OpSection& section, const std::string& run);

/// Draws a small chart per case and dtype that some peer was timed beside: bars of time, the floor
/// dashed. All bars of a chart are of one run.
std::string peer_charts(const ReportFile& file, const OpSection& section);

}  // namespace tandem::tools
