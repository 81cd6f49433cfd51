#include "report_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report_text.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string peer_text(const PeerCell& peer, const ReportRow& ours) {
  if (peer.row == nullptr) return "-";
  std::string text = "failed";
  if (peer.row->timed()) text = fixed(peer.row->median_us, 1);
  if (peer.ratio) text += fmt::format(" ({:.2f}x)", *peer.ratio);
  if (peer.row->run != ours.run) text += " in " + peer.row->run;
  return text;
}

/// Selects the lines that a detail shows: with kBrief the first dtype of each case, and no sweep
/// over sizes.
std::vector<const CaseLine*> lines_of(const OpSection& section, Detail detail) {
  std::vector<const CaseLine*> lines;
  std::set<std::string> seen;
  for (const CaseLine& line : section.lines) {
    const std::string& name = line.ours->case_name;
    const bool brief = seen.insert(name).second && !name.starts_with("sweep_");
    if (brief || detail == Detail::kFull) lines.push_back(&line);
  }
  return lines;
}

}  // namespace

Table results_table(const OpSection& section, Detail detail) {
  const std::vector<const CaseLine*> lines = lines_of(section, detail);
  const bool several_runs = std::any_of(lines.begin(), lines.end(), [&](const CaseLine* line) {
    return line->ours->run != lines[0]->ours->run;
  });
  Table table;
  add_column(table, "case", false);
  add_column(table, "dtype", false);
  add_column(table, "time (us)", true);
  add_column(table, "floor (us)", true);
  add_column(table, "time / floor", true);
  for (const std::string& peer : section.peers) add_column(table, peer + " (us)", true);
  if (several_runs) add_column(table, "run", false);
  for (const CaseLine* line : lines) {
    const ReportRow& ours = *line->ours;
    std::vector<std::string> cells = {
        ours.case_name, ours.dtype, ours.timed() ? fixed(ours.median_us, 1) : "failed",
        fixed(ours.floor_us, 1), fixed(ratio(ours.median_us, ours.floor_us), 2)};
    for (const PeerCell& peer : line->peers) cells.push_back(peer_text(peer, ours));
    if (several_runs) cells.push_back(ours.run);
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table details_table(const OpSection& section) {
  Table table;
  for (const char* title : {"case", "dtype"}) add_column(table, title, false);
  add_column(table, "p10 to p90 (us)", true);
  for (const char* title : {"error", "variant", "run"}) add_column(table, title, false);
  for (const CaseLine& line : section.lines) {
    const ReportRow& ours = *line.ours;
    if (!ours.timed()) continue;
    table.rows.push_back(
        {ours.case_name, ours.dtype,
         ours.p10_us && ours.p90_us ? fmt::format("{:.1f} to {:.1f}", *ours.p10_us, *ours.p90_us)
                                    : "-",
         ours.error ? fmt::format("{:.1e} ({})", *ours.error, ours.error_metric) : "-",
         ours.variant.empty() ? "-" : ours.variant, ours.run});
  }
  return table;
}

std::vector<std::string> failures(const OpSection& section, Detail detail) {
  // why listed by text: a peer mostly fails for one reason in all cases.
  std::vector<std::pair<std::pair<std::string, std::string>, std::vector<std::string>>> groups;
  const auto add = [&](const ReportRow& row) {
    if (row.timed()) return;
    const std::pair key{fmt::format("{}, run {}", row.provider, row.run), row.failure};
    auto at =
        std::find_if(groups.begin(), groups.end(), [&](auto& group) { return group.first == key; });
    if (at == groups.end()) at = groups.insert(at, {key, {}});
    at->second.push_back(row.case_name + " " + row.dtype);
  };
  for (const CaseLine* line : lines_of(section, detail)) {
    add(*line->ours);
    for (const PeerCell& peer : line->peers) {
      if (peer.row != nullptr) add(*peer.row);
    }
  }
  std::vector<std::string> texts;
  for (const auto& [key, cases] : groups) {
    std::string reason = key.second.substr(0, key.second.find('\n'));  // the first line says what
    if (reason.ends_with(':')) reason.pop_back();
    texts.push_back(fmt::format("{}, {}: {}", key.first, fmt::join(cases, ", "), reason));
  }
  return texts;
}

std::vector<std::string> first_calls(const OpSection& section) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < section.peers.size(); ++i) {
    double least = 0, most = 0;
    for (const CaseLine& line : section.lines) {
      const ReportRow* row = line.peers[i].row;
      const double seconds = row == nullptr ? 0 : row->first_call_s.value_or(0);
      if (seconds <= 0) continue;
      least = least == 0 ? seconds : std::min(least, seconds);
      most = std::max(most, seconds);
    }
    if (most > 0)
      texts.push_back(fmt::format("{}: {:.1f} to {:.1f} s", section.peers[i], least, most));
  }
  return texts;
}

std::string describe_run(const ReportRun& run) {
  const Json& json = run.json;
  const auto object = [&](const char* name) {
    return json.contains(name) && json[name].is_object() ? json[name] : Json::object();
  };
  const Json device = object("device"), ceilings = object("ceilings"), timer = object("timer");
  const Json versions = object("versions"), missing = object("missing");
  std::vector<std::string> facts = {text_of(device, "name")};
  if (!text_of(device, "driver").empty()) facts.push_back("driver " + text_of(device, "driver"));
  const auto fact = [&](const Json& of, const char* name, const char* format, double least) {
    const auto value = number_of(of, name);
    if (value && *value > least) facts.push_back(fmt::format(fmt::runtime(format), *value));
  };
  fact(device, "sm_clock_mhz", "SM clock {:.0f} MHz", 0);
  fact(device, "power_w", "{:.0f} W", 0);
  fact(ceilings, "copy_tbps", "copy {:.2f} TB/s", 0);
  fact(ceilings, "bf16_tflops", "bf16 matrix product {:.0f} TFLOP/s", 0);
  if (!text_of(timer, "method").empty()) {
    facts.push_back(fmt::format("timer {}, L2 {}", text_of(timer, "method"), text_of(timer, "l2")));
  }
  for (const auto& [package, version] : versions.items()) {
    facts.push_back(package + " " +
                    (version.is_string() ? version.get<std::string>() : version.dump()));
  }
  for (const auto& [peer, reason] : missing.items()) {
    facts.push_back(fmt::format("without {} ({})", peer, text_of(missing, peer.c_str())));
  }
  facts.push_back("commit " + text_of(json, "commit"));
  facts.push_back(text_of(json, "date"));
  facts.push_back("`" + text_of(json, "command") + "`");
  return fmt::format("{}", fmt::join(facts, ", "));
}

std::string direction_title(const std::string& direction) {
  if (direction == "forward_backward") return "forward + backward";
  std::string title = direction;
  std::replace(title.begin(), title.end(), '_', ' ');
  return title;
}

}  // namespace tandem::tools
