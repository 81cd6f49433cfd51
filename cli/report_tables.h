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

/// What tables show. kBrief: one dtype of each case, without sweeps over sizes (sweep_*). kFull:
/// all.
enum class Detail { kBrief, kFull };

/// Makes the table of times, ratios to the floor and to each peer. A peer timed beside Tandem in
/// another run than the row's names that run.
Table results_table(const OpSection& section, Detail detail);

/// Makes the table of spread, error, variant and run of every case that was timed.
Table details_table(const OpSection& section);

/// Makes the table of what the counters of each case say in one line; no rows when none has any.
Table readings_table(const OpSection& section);

/// Makes the table of the counters themselves.
Table counters_table(const OpSection& section);

/// The lines of a tuning log by direction, case, dtype and device, which the name says.
std::vector<std::pair<std::string, std::vector<nlohmann::ordered_json>>> iteration_groups(
    const std::vector<nlohmann::ordered_json>& lines);

/// Makes the table of a kernel's versions on one case, oldest first, against the first of them.
Table iterations_table(const std::vector<nlohmann::ordered_json>& lines);

/// Lists failures: "fla, a bf16, run 2: no such kernel", each text once for all cases that share
/// it.
std::vector<std::string> failures(const OpSection& section, Detail detail);

/// Lists how long the first calls of the shown peers took, which compile: "fla: 0.8 to 12.0 s".
std::vector<std::string> first_calls(const OpSection& section);

/// Says where the numbers of a run come from: "NVIDIA H200, driver 580, ..., `tandem bench gla`".
std::string describe_run(const ReportRun& run);

/// Returns "forward + backward".
std::string direction_title(const std::string& direction);

}  // namespace tandem::tools
