// The tables of a report, as text: HTML and Markdown differ only in how they write them.
#pragma once

#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/report/data.h"

namespace tandem::tools {

struct Table {
  std::vector<std::string> header;
  std::vector<bool> numeric;  // such columns are aligned right
  std::vector<std::vector<std::string>> rows;
};

/// Makes the table of times, ratios to the floor and to each peer. A peer timed beside Tandem in
/// another run than the row's names that run.
Table results_table(const OpSection& section);

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
std::vector<std::string> failures(const OpSection& section);

/// Lists how long the first calls of the shown peers took, which compile: "fla: 0.8 to 12.0 s".
std::vector<std::string> first_calls(const OpSection& section);

/// Lists what runs share, each text once: "20260101-1, 20260101-2: NVIDIA H200, driver 580, timer
/// cuda-graph, L2 cold, torch 2.11.0".
std::vector<std::string> run_settings(const std::vector<const ReportRun*>& runs);

/// Makes the table of runs: commit, state and ceilings of the device, command.
Table runs_table(const std::vector<const ReportRun*>& runs);

/// Returns "B4 H32 T4096 D64, 20 sequences": the axes but `left_out` and those that have their
/// default; D is K where V is the same.
std::string shape_text(const Case& one, const std::string& left_out = "");
/// Of a line whose case the program does not know: "-".
std::string shape_text(const CaseLine& line);

/// Returns "forward + backward".
std::string direction_title(const std::string& direction);

}  // namespace tandem::tools
