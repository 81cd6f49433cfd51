// bench/results/<device>/<op>.json: raw results, written by several tools into one file.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/calls/check.h"
#include "cli/calls/measure.h"
#include "cli/calls/operation.h"

namespace tandem::tools {

/// Facts that all rows of one run share.
struct ResultsRun {
  std::string device_name;
  gpu::State state;
  std::string commit;
  std::string command;
  std::string timer;  // "cuda-graph", "steady_clock" or what a round of the host's share is
  bool cold = true;
  Ceilings ceilings;  // left out where there are none
  std::map<std::string, std::string> versions;
};

struct ResultsRow {
  std::string op;
  std::string direction;
  std::string case_name;
  std::string dtype;
  std::string provider = "tandem";
  std::string variant;
  bool chosen = false;  // the library itself chose the variant
  Timing timing;
  Cost cost;
  double floor_us = 0;
  std::optional<double> plan_us;  // of the host's share, which has no cost and no floor
  double error = 0;               // relative RMS of the worst output
  gpu::State state;               // right after the row was timed
};

/// Rounds to four significant digits: enough for any comparison; more would only be noise in a
/// diff.
double rounded(double value);

/// Returns today in UTC, as in "2026-11-21".
std::string today();

/// Reads a results file, checked as far as its readers rely on it; where there is no file yet, or
/// one that is only written to, as a pipe, a file without runs and rows. Throws std::runtime_error
/// naming the file, the run or row, and the field.
nlohmann::ordered_json read_results(const std::string& path);

/// A file of results. Rows are merged by (run, op, direction, case, dtype, provider), and the file
/// is replaced whole, by renaming.
class ResultsFile {
 public:
  /// Opens the file for a run; an empty `run_id` becomes today's date and the first number that no
  /// results file of the folder uses.
  ResultsFile(std::string path, std::string run_id, const ResultsRun& run);
  /// Adds or replaces the row, and writes the file: a run that is cut short keeps what it measured.
  void add(const ResultsRow& row);
  /// Sets the counters of the latest row with the op, direction, case, dtype, provider and variant
  /// of `row`, whatever its run, and adds the name of this run to them. A row that names no variant
  /// is of the one that the library chose. False, and nothing is written, when there is no such
  /// row.
  bool add_counters(const ResultsRow& row, nlohmann::ordered_json counters);
  const std::string& run_id() const { return run_id_; }

 private:
  void add_run(nlohmann::ordered_json& json, const ResultsRow& row);
  void write(const nlohmann::ordered_json& json) const;

  std::string path_;
  std::string run_id_;
  ResultsRun run_;
};

}  // namespace tandem::tools
