// The tables of a report, as text: HTML and Markdown differ only in how they write them.
#pragma once

#include <string>
#include <vector>

#include "report_data.h"

namespace tandem::tools {

struct Table {
  std::vector<std::string> header;
  std::vector<bool> numeric;  // such columns are aligned right
  std::vector<std::vector<std::string>> rows;
};

/// kBrief: one dtype of each case, without sweeps over sizes (sweep_*). kFull: all of them.
enum class Detail { kBrief, kFull };

/// Times, ratios to the floor and to each peer. A peer timed beside Tandem in another run than the
/// row's names that run.
Table results_table(const OpSection& section, Detail detail);

/// Spread, error, variant and run of every case that was timed.
Table details_table(const OpSection& section);

/// What the counters of each case say in one line; no rows when none has any.
Table readings_table(const OpSection& section);

/// The counters themselves.
Table counters_table(const OpSection& section);

/// The lines of a tuning log by direction, case, dtype and device, which the name says.
std::vector<std::pair<std::string, std::vector<nlohmann::ordered_json>>> iteration_groups(
    const std::vector<nlohmann::ordered_json>& lines);

/// Versions of a kernel on one case, oldest first, against the first of them.
Table iterations_table(const std::vector<nlohmann::ordered_json>& lines);

/// "fla, a bf16, run 2: no such kernel", each text once for all cases that it is the same of.
std::vector<std::string> failures(const OpSection& section, Detail detail);

/// "fla: 0.8 to 12.0 s": how long the first calls of the shown peers took, which compile.
std::vector<std::string> first_calls(const OpSection& section);

/// Where the numbers of a run come from: "NVIDIA H200, driver 580, ..., `tandem bench gla`".
std::string describe_run(const ReportRun& run);

/// "forward + backward".
std::string direction_title(const std::string& direction);

}  // namespace tandem::tools
