#include "cli/ops/linear_scan_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "cli/cases/cases.h"
#include "cli/report/markdown.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

constexpr const char* kOp = "linear_scan";
constexpr const char* kLargest = "b8_t4096_d1024";
// The op by three kernels, by two, by one.
constexpr const char* kProviders[] = {"unfused", "composed", "tandem"};

bool is_sweep(const std::string& name) { return name.rfind("sweep_", 0) == 0; }

/// A size and dtype, and the rows of the chosen run by kProviders; null where it has none.
struct Size {
  const ReportFile* file;
  const Case* one;
  std::string dtype, run;
  const ReportRow* rows[3] = {};
};

const ReportRow* find_row(const ReportFile& file, const Size& size, const char* provider) {
  for (const ReportRow& row : file.rows) {
    if (row.op == kOp && row.direction == "forward" && row.run == size.run &&
        row.case_name == size.one->name && row.dtype == size.dtype && row.provider == provider &&
        row.timed()) {
      return &row;
    }
  }
  return nullptr;
}

/// Chooses the latest run with rows of all three providers, or else of the first and the last.
std::vector<Size> sizes_of(const ReportFile& file, const std::vector<Case>& cases) {
  std::vector<Size> sizes;
  for (const Case& one : cases) {
    if (!is_sweep(one.name) && one.name != kLargest) continue;
    for (const DType dtype : one.dtypes) {
      Size best{&file, &one, to_string(dtype), "", {}};
      for (const ReportRun& run : file.runs) {  // oldest first
        Size size{&file, &one, to_string(dtype), run.id, {}};
        for (int i = 0; i < 3; ++i) size.rows[i] = find_row(file, size, kProviders[i]);
        const bool good = size.rows[0] != nullptr && size.rows[2] != nullptr;
        if (good && (size.rows[1] != nullptr || best.rows[1] == nullptr)) best = size;
      }
      if (!best.run.empty()) sizes.push_back(best);
    }
  }
  const auto place = [](const Size& size) {
    const Case& one = *size.one;
    return std::tuple(one.axis("d") * one.axis("D"), one.axis("B"), one.axis("T"));
  };
  std::stable_sort(sizes.begin(), sizes.end(),
                   [&](const Size& a, const Size& b) { return place(a) < place(b); });
  return sizes;
}

/// Returns counted bytes of the row, or of another run's row of the same variant.
std::optional<double> dram_bytes(const ReportFile& file, const ReportRow* row) {
  if (row == nullptr) return std::nullopt;
  const auto counted = [](const ReportRow& one) -> std::optional<double> {
    if (!one.counters.is_object()) return std::nullopt;
    const auto read = number_of(one.counters, "dram_read_bytes");
    const auto write = number_of(one.counters, "dram_write_bytes");
    return read && write ? std::optional(*read + *write) : std::nullopt;
  };
  std::optional<double> found = counted(*row);
  for (const ReportRow& other : file.rows) {
    const bool same = other.op == row->op && other.direction == row->direction &&
                      other.case_name == row->case_name && other.dtype == row->dtype &&
                      other.provider == row->provider && other.variant == row->variant;
    if (same && !found) found = counted(other);
  }
  return found;
}

/// Finds gated_scan at the same B, T and D, of the latest run.
const ReportRow* scan_alone(const std::vector<ReportFile>& files, const Size& size) {
  for (const ReportFile& file : files) {
    if (file.device != size.file->device) continue;
    for (const OpSection& section : select_sections(file)) {
      if (section.op != "gated_scan" || section.direction != "forward") continue;
      for (const CaseLine& line : section.lines) {
        const ReportRow& row = *line.ours;
        if (row.case_name == size.one->name && row.dtype == size.dtype && row.timed()) return &row;
      }
    }
  }
  return nullptr;
}

std::string times(std::optional<double> value) {
  return value ? fmt::format("{:.2f}x", *value) : "-";
}

}  // namespace

Table kernels_table(const std::vector<ReportFile>& files, const std::string& device) {
  Table table;
  for (const char* axis : {"B", "T", "d", "D"}) add_column(table, axis, true);
  add_column(table, "dtype", false);
  for (const char* title :
       {"three kernels (us)", "two (us)", "one (us)", "three / two", "three / one", "two / one",
        "DRAM of three", "of two", "of one", "one / three", "one / fewest", "gated_scan alone (us)",
        "2 floors + 5 us"}) {
    add_column(table, title, true);
  }
  add_column(table, "run", false);
  const std::vector<Case> cases = load_cases(kOp);
  for (const ReportFile& file : files) {
    if (file.device != device) continue;
    for (const Size& size : sizes_of(file, cases)) {
      std::vector<std::string> cells;
      for (const char* axis : {"B", "T", "d", "D"}) {
        cells.push_back(std::to_string(size.one->axis(axis)));
      }
      cells.push_back(size.dtype);
      std::optional<double> us[3], dram[3];
      for (int i = 0; i < 3; ++i) {
        if (size.rows[i] != nullptr) us[i] = size.rows[i]->median_us;
        dram[i] = dram_bytes(file, size.rows[i]);
        cells.push_back(fixed(us[i], 1));
      }
      cells.push_back(times(ratio(us[0], us[1])));
      cells.push_back(times(ratio(us[0], us[2])));
      cells.push_back(times(ratio(us[1], us[2])));
      for (const auto& bytes : dram) cells.push_back(bytes_of(bytes));
      cells.push_back(times(ratio(dram[2], dram[0])));
      cells.push_back(times(ratio(dram[2], size.rows[2]->bytes)));
      const ReportRow* scan = is_sweep(size.one->name) ? scan_alone(files, size) : nullptr;
      cells.push_back(scan == nullptr ? "-" : fixed(scan->median_us, 1));
      cells.push_back(scan == nullptr || !scan->floor_us ? "-" : fixed(2 * *scan->floor_us + 5, 1));
      cells.push_back(size.run);
      table.rows.push_back(std::move(cells));
    }
  }
  return table;
}

std::string kernels_block(const std::vector<ReportFile>& files) {
  std::set<std::string> devices;
  for (const ReportFile& file : files) devices.insert(file.device);
  const std::vector<Case> cases = load_cases(kOp);
  std::string text;
  for (const std::string& device : devices) {
    const Table table = kernels_table(files, device);
    if (table.rows.empty()) continue;
    text += fmt::format("### On {}\n\n{}\n", device, to_markdown(table));
    for (const ReportFile& file : files) {
      if (file.device != device) continue;
      std::set<std::string> ids;
      for (const Size& size : sizes_of(file, cases)) ids.insert(size.run);
      std::vector<const ReportRun*> runs;
      for (const ReportRun& run : file.runs) {
        if (ids.count(run.id)) runs.push_back(&run);
      }
      if (!runs.empty()) text += markdown_runs(runs);
    }
  }
  return text.empty() ? "No measurements yet.\n" : text;
}

}  // namespace tandem::tools
