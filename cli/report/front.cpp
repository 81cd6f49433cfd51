#include "cli/report/front.h"

#include <fmt/format.h>

#include <set>

#include "cli/cases/cases.h"
#include "cli/report/markdown.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

/// What a user calls: backward alone and state are parts of it.
constexpr const char* kDirections[] = {"forward", "forward_backward", "step"};
constexpr const char* kDtype = "bf16";

std::string op_of(const ReportFile& file) { return file.name.substr(0, file.name.find('.')); }

const CaseLine* find_line(const std::vector<OpSection>& sections, const std::string& direction,
                          const std::string& name) {
  for (const OpSection& section : sections) {
    if (section.direction != direction) continue;
    for (const CaseLine& line : section.lines) {
      const ReportRow& row = *line.ours;
      if (row.case_name == name && row.dtype == kDtype && row.timed()) return &line;
    }
  }
  return nullptr;
}

const PeerCell* fastest_peer(const CaseLine& line) {
  const PeerCell* fastest = nullptr;
  for (const PeerCell& peer : line.peers) {
    if (!peer.ratio || is_yardstick(peer.row->provider)) continue;
    if (fastest == nullptr || *peer.ratio < *fastest->ratio) fastest = &peer;
  }
  return fastest;
}

/// The lines of a file, each with its case.
std::vector<std::pair<Case, CaseLine>> front_lines(const ReportFile& file) {
  std::vector<std::pair<Case, CaseLine>> lines;
  const std::vector<OpSection> sections = select_sections(file);
  const std::vector<Case> cases = select_cases(known_cases(op_of(file)), "", "front");
  for (const char* direction : kDirections) {
    for (const Case& one : cases) {
      const CaseLine* line = find_line(sections, direction, one.name);
      if (line != nullptr) lines.emplace_back(one, *line);
    }
  }
  return lines;
}

/// Runs that the times and the ratios are of.
std::vector<const ReportRun*> front_runs(const std::vector<ReportFile>& files,
                                         const std::string& device) {
  std::vector<const ReportRun*> runs;
  for (const ReportFile& file : files) {
    if (file.device != device) continue;
    std::set<std::string> ids;
    for (const auto& [one, line] : front_lines(file)) {
      ids.insert(line.ours->run);
      if (const PeerCell* peer = fastest_peer(line)) ids.insert(peer->row->run);
    }
    for (const ReportRun& run : file.runs) {
      if (ids.count(run.id)) runs.push_back(&run);
    }
  }
  return runs;
}

std::set<std::string> devices_of(const std::vector<ReportFile>& files) {
  std::set<std::string> devices;
  for (const ReportFile& file : files) devices.insert(file.device);
  return devices;
}

}  // namespace

Table front_table(const std::vector<ReportFile>& files, const std::string& device) {
  Table table;
  for (const char* title : {"op", "direction", "shape"}) add_column(table, title, false);
  for (const char* title : {"time (us)", "time / floor"}) add_column(table, title, true);
  add_column(table, "fastest peer", false);
  add_column(table, "its time / Tandem's", true);
  for (const ReportFile& file : files) {
    if (file.device != device) continue;
    for (const auto& [one, line] : front_lines(file)) {
      const ReportRow& ours = *line.ours;
      const PeerCell* peer = fastest_peer(line);
      table.rows.push_back({ours.op, direction_title(ours.direction),
                            shape_text(one, ours.direction == "step" ? "T" : ""),
                            fixed(ours.median_us, 1),
                            fixed(ratio(ours.median_us, ours.floor_us), 2),
                            peer == nullptr ? "-" : peer->row->provider,
                            peer == nullptr ? "-" : fixed(peer->ratio, 2)});
    }
  }
  return table;
}

std::string front_block(const std::vector<ReportFile>& files) {
  std::string of;  // the device
  Table most;
  for (const std::string& device : devices_of(files)) {
    Table table = front_table(files, device);
    if (table.rows.size() <= most.rows.size()) continue;
    of = device;
    most = std::move(table);
  }
  if (most.rows.empty()) return "No measurements yet.\n";
  return fmt::format("On {}:\n\n{}\n", of, to_markdown(most)) +
         markdown_settings(front_runs(files, of));
}

}  // namespace tandem::tools
