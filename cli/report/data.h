// What a report is made from: results files, read leniently (several tools write them), and the
// choice of rows that are shown.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/cases/cases.h"

namespace tandem::tools {

// NOLINTNEXTLINE(bugprone-exception-escape): a json is moved without exceptions.
struct ReportRow {
  std::string run, op, direction, case_name, dtype, provider, variant;
  std::optional<double> median_us, p10_us, p90_us, floor_us, bytes, flops;
  std::optional<double> error;
  std::string error_metric;
  std::optional<double> plan_us;       // of the host's share: without a launch
  std::optional<double> first_call_s;  // compilation included
  std::string failure;                 // why there is no time
  nlohmann::ordered_json counters;     // null when there are none

  bool timed() const { return median_us.has_value(); }
  /// The provider does not do this case: nothing went wrong.
  bool refused() const { return failure.starts_with("refused: "); }
};

struct ReportRun {
  std::string id;
  nlohmann::ordered_json json;
};

/// bench/results/<device>/<op>.json, or in its folder host. No two files of one folder use one id
/// of a run.
struct ReportFile {
  std::string device, name;     // "nvidia-h200", "gla.json"
  std::vector<ReportRun> runs;  // oldest first; of one day: in the order of the file
  std::vector<ReportRow> rows;

  /// Returns the index in `runs`.
  std::size_t age(const std::string& run) const;
  /// Returns the run's ceiling, "copy_tbps" or "bf16_tflops"; 0 when it has none.
  double ceiling(const std::string& run, const char* name) const;
};

/// Reads one results file. Its device is the name of the folder that it lies in. Throws
/// std::runtime_error naming the file and what is wrong in it.
ReportFile load_file(const std::string& path);

/// Reads every `<folder>/<device>/<op>.json`, in order of their names. A folder that does not exist
/// holds none.
std::vector<ReportFile> load_results(const std::string& folder);

/// Lists every run id that two files of a folder use: "nvidia-h200: run 20260101-1 is in gla.json
/// and in gated_scan.json".
std::vector<std::string> repeated_runs(const std::vector<ReportFile>& files);

/// Tells whether a peer of an op computes something else of the same shape: softmax attention
/// beside gla.
bool is_yardstick(const std::string& op, const std::string& peer);

/// Reads the lines of a tuning log. Throws std::runtime_error naming the file, the line and the
/// field.
std::vector<nlohmann::ordered_json> read_log(const std::string& path);

/// Reads the lines of `<folder>/<op>.iterations.jsonl` by op.
std::map<std::string, std::vector<nlohmann::ordered_json>> load_iterations(
    const std::string& folder);

/// A peer of a case: the row of the latest run that timed both, and its time over Tandem's in that
/// run (none when the peer failed there).
struct PeerCell {
  const ReportRow* row = nullptr;
  std::optional<double> ratio;
};

/// A case and dtype: Tandem's row of the latest run that timed it, or else the latest that failed.
struct CaseLine {
  const ReportRow* ours = nullptr;
  std::vector<PeerCell> peers;  // as OpSection::peers
  std::optional<Case> known;    // of the table that the program was built with

  /// Finds the timed peer with the least ratio, yardsticks left out; null without one.
  const PeerCell* fastest_peer() const;
};

struct OpSection {
  std::string op, direction;
  std::vector<std::string> peers;
  std::vector<CaseLine> lines;  // in the order of the file

  /// Returns the dtype to draw and to sum up: bf16 where the section has it, else its first.
  std::string main_dtype() const;
  /// What a user calls; backward alone and the states are parts of it.
  bool is_whole_call() const {
    return direction == "forward" || direction == "forward_backward" || direction == "step";
  }
};

/// Selects what is shown of a file. Every ratio is of two rows of one run.
std::vector<OpSection> select_sections(const ReportFile& file);

/// What one file has of an op.
struct OpPlace {
  const ReportFile* file;
  std::vector<OpSection> sections;
};

struct OpReport {
  std::string op;
  std::vector<OpPlace> places;  // the device with the most rows of all files first
};

/// Selects what is shown of all files, by op: in the order of case_schemas(), then the others.
std::vector<OpReport> select_ops(const std::vector<ReportFile>& files);

/// Estimates what a launch takes on the device: the time of the shortest call of less than 10 us
/// whose floor is less than half of it. None without such a call.
std::optional<double> launch_us(const std::vector<ReportFile>& files, const std::string& device);

/// Returns the cases of an op; none of one that this build does not know.
std::vector<Case> known_cases(const std::string& op);

/// Returns the runs that the sections show times of, oldest first; with `counters` also those that
/// counters came from.
std::vector<const ReportRun*> shown_runs(const ReportFile& file,
                                         const std::vector<OpSection>& sections, bool counters);

}  // namespace tandem::tools
