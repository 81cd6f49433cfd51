#include "cli/report/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "cli/report/markdown.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;

// The yardsticks of bench/peers/host.py.
constexpr const char* kYardsticks = "torch";
constexpr const char* kAdd = "add";
constexpr const char* kFunction = "function";

/// Selects, of each call, the row of the latest run that timed it, or else the latest failure; in
/// the order of the file.
std::vector<const ReportRow*> latest_rows(const ReportFile& file) {
  const auto key = [](const ReportRow& row) {
    return std::tie(row.op, row.direction, row.case_name, row.dtype, row.provider);
  };
  const auto rank = [&](const ReportRow& row) { return std::pair(row.timed(), file.age(row.run)); };
  std::vector<const ReportRow*> rows;
  for (const ReportRow& row : file.rows) {
    const auto same = std::find_if(rows.begin(), rows.end(),
                                   [&](const ReportRow* one) { return key(*one) == key(row); });
    if (same == rows.end()) {
      rows.push_back(&row);
    } else if (rank(row) >= rank(**same)) {
      *same = &row;
    }
  }
  return rows;
}

/// Returns the time of a yardstick in the run of `row`.
std::optional<double> yardstick(const ReportFile& file, const ReportRow& row,
                                const std::string& provider) {
  for (const ReportRow& one : file.rows) {
    if (one.run == row.run && one.op == kYardsticks && one.provider == provider) {
      return one.median_us;
    }
  }
  return std::nullopt;
}

/// Takes out the columns in which no row has anything.
void drop_empty_columns(Table& table) {
  for (std::size_t i = table.header.size(); i-- > 0;) {
    const auto filled = [&](const auto& row) { return row[i] != "-"; };
    if (std::any_of(table.rows.begin(), table.rows.end(), filled)) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    table.header.erase(table.header.begin() + at);
    table.numeric.erase(table.numeric.begin() + at);
    for (auto& row : table.rows) row.erase(row.begin() + at);
  }
}

std::vector<const ReportRun*> runs_of(const ReportFile& file) {
  std::set<std::string> ids;
  for (const ReportRow* row : latest_rows(file)) ids.insert(row->run);
  std::vector<const ReportRun*> runs;
  for (const ReportRun& run : file.runs) {
    if (ids.count(run.id)) runs.push_back(&run);
  }
  return runs;
}

}  // namespace

std::vector<ReportFile> load_host(const std::string& folder) {
  std::vector<fs::path> paths;
  std::error_code missing;
  for (const auto& device : fs::directory_iterator(folder, missing)) {
    for (const auto& entry : fs::directory_iterator(device.path() / "host", missing)) {
      if (entry.path().extension() == ".json") paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<ReportFile> files;
  for (const fs::path& path : paths) {
    files.push_back(load_file(path.string()));
    files.back().device = path.parent_path().parent_path().filename().string();
  }
  return files;
}

Table host_table(const ReportFile& file) {
  const std::vector<const ReportRow*> rows = latest_rows(file);
  const bool several_runs = std::any_of(rows.begin(), rows.end(), [&](const ReportRow* row) {
    return row->run != rows.front()->run;
  });
  Table table;
  for (const char* title : {"op", "direction", "provider", "case", "dtype"}) {
    add_column(table, title, false);
  }
  for (const char* title : {"time (us)", "p10 to p90 (us)", "check and choice alone (us)",
                            "/ torch.add", "/ empty Function"}) {
    add_column(table, title, true);
  }
  add_column(table, "run", false);
  for (const ReportRow* row : rows) {
    const bool with_gradients = row->direction == "forward_backward";
    const auto over = [&](const char* provider) {
      return fixed(ratio(row->median_us, yardstick(file, *row, provider)), 2);
    };
    table.rows.push_back({row->op, direction_title(row->direction), row->provider, row->case_name,
                          row->dtype, row->timed() ? fixed(row->median_us, 1) : "failed",
                          row->p10_us && row->p90_us
                              ? fmt::format("{:.1f} to {:.1f}", *row->p10_us, *row->p90_us)
                              : "-",
                          fixed(row->plan_us, 2), over(kAdd),
                          with_gradients ? over(kFunction) : "-", several_runs ? row->run : "-"});
  }
  drop_empty_columns(table);
  return table;
}

std::string host_block(const std::vector<ReportFile>& files) {
  std::string text;
  for (const ReportFile& file : files) {
    if (file.rows.empty()) continue;
    text +=
        fmt::format("## {} on {}\n\n{}\n", file.name, file.device, to_markdown(host_table(file)));
    std::string failures;
    for (const ReportRow* row : latest_rows(file)) {
      if (row->timed()) continue;
      failures += markdown_item(fmt::format(
          "{} {}, {}: {}", row->op, direction_title(row->direction), row->provider, row->failure));
    }
    if (!failures.empty()) text += failures + "\n";
    text += markdown_runs(runs_of(file));
  }
  return text.empty() ? "No measurements yet.\n" : text;
}

}  // namespace tandem::tools
