#include "cli/report/front.h"

#include <fmt/format.h>

#include <set>

#include "cli/report/markdown.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

constexpr const char* kDtype = "bf16";

const CaseLine* find_line(const OpPlace& place, const std::string& direction,
                          const std::string& name) {
  for (const OpSection& section : place.sections) {
    if (section.direction != direction) continue;
    for (const CaseLine& line : section.lines) {
      const ReportRow& row = *line.ours;
      if (row.case_name == name && row.dtype == kDtype && row.timed()) return &line;
    }
  }
  return nullptr;
}

/// Returns time, time over floor, and the fastest peer with its time over Tandem's; "-" for each
/// without a line.
std::vector<std::string> cells_of(const CaseLine* line) {
  if (line == nullptr) return {"-", "-", "-"};
  const ReportRow& ours = *line->ours;
  const PeerCell* peer = line->fastest_peer();
  return {three_digits(ours.median_us), fixed(ratio(ours.median_us, ours.floor_us), 2),
          peer == nullptr ? "-" : fmt::format("{} {:.2f}x", peer->row->provider, *peer->ratio)};
}

}  // namespace

Table front_table(const std::vector<OpReport>& ops, const std::string& device) {
  Table table;
  for (const char* title : {"op", "shape"}) add_column(table, title, false);
  for (const char* direction : {"forward", "forward + backward"}) {
    add_column(table, std::string(direction) + " (us)", true);
    add_column(table, "/ floor", true);
    add_column(table, "fastest peer", false);
  }
  for (const OpReport& op : ops) {
    for (const OpPlace& place : op.places) {
      if (place.file->device != device) continue;
      for (const Case& one : known_cases(op.op)) {
        if (!one.tagged("front")) continue;
        const bool step = one.has_direction("step");
        const CaseLine* forward = find_line(place, step ? "step" : "forward", one.name);
        const CaseLine* both = find_line(place, "forward_backward", one.name);
        if (forward == nullptr && both == nullptr) continue;
        std::vector<std::string> row = {op.op + (step ? ", one token" : ""),
                                        shape_text(forward != nullptr ? *forward : *both)};
        for (const CaseLine* line : {forward, both}) {
          for (std::string& cell : cells_of(line)) row.push_back(std::move(cell));
        }
        table.rows.push_back(std::move(row));
      }
    }
  }
  return table;
}

std::string front_block(const std::vector<ReportFile>& files) {
  const std::vector<OpReport> ops = select_ops(files);
  std::set<std::string> devices;
  for (const ReportFile& file : files) devices.insert(file.device);
  std::string of;
  Table most;
  for (const std::string& device : devices) {
    Table table = front_table(ops, device);
    if (table.rows.size() <= most.rows.size()) continue;
    of = device;
    most = std::move(table);
  }
  if (most.rows.empty()) return "No measurements yet.\n";
  return fmt::format("On {}; beside a peer, its time over Tandem's:\n\n{}\n", of,
                     to_markdown(most));
}

}  // namespace tandem::tools
