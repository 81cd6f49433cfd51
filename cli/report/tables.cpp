#include "cli/report/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "cli/report/text.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string time_text(const ReportRow& row) {
  return row.timed() ? three_digits(row.median_us) : row.refused() ? "n/a" : "failed";
}

std::string peer_text(const PeerCell& peer, const ReportRow& ours) {
  if (peer.row == nullptr) return "-";
  std::string text = time_text(*peer.row);
  if (peer.ratio) text += fmt::format(" ({:.2f}x)", *peer.ratio);
  if (peer.row->run != ours.run) text += " in " + peer.row->run;
  return text;
}

std::string describe_setting(const ReportRun& run) {
  const auto object = [&](const char* name) {
    return run.json.contains(name) && run.json[name].is_object() ? run.json[name] : Json::object();
  };
  const Json device = object("device"), timer = object("timer");
  const Json versions = object("versions"), missing = object("missing");
  std::vector<std::string> facts = {text_of(device, "name")};
  if (!text_of(device, "driver").empty()) facts.push_back("driver " + text_of(device, "driver"));
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
  return fmt::format("{}", fmt::join(facts, ", "));
}

constexpr std::size_t kCommand = 120;  // columns
constexpr std::size_t kPatterns = 4;   // of a list of cases

/// A recorded command in one line: without the results file and the run that it was written to, a
/// long list of cases by its length, the first of several commands.
std::string short_command(const std::string& recorded) {
  std::istringstream words(recorded.substr(0, recorded.find("; ")));
  std::vector<std::string> kept;
  for (std::string word; words >> word;) {
    if (word == "--json" || word == "--run") {
      words >> word;
      continue;
    }
    const std::size_t patterns = std::count(word.begin(), word.end(), ',') + 1;
    const bool cases = !kept.empty() && kept.back() == "--case";
    kept.push_back(cases && patterns > kPatterns ? fmt::format("({} patterns)", patterns) : word);
  }
  std::string text = fmt::format("{}", fmt::join(kept, " "));
  std::size_t more = 0;
  for (std::size_t at = 0; (at = recorded.find("; ", at)) != std::string::npos; at += 2) ++more;
  const std::string rest = more == 0 ? "" : fmt::format("; and {} more", more);
  if (text.size() + rest.size() > kCommand)
    text = text.substr(0, kCommand - rest.size() - 4) + " ...";
  return text + rest;
}

}  // namespace

Table results_table(const OpSection& section) {
  const bool several_runs = std::any_of(
      section.lines.begin(), section.lines.end(),
      [&](const CaseLine& line) { return line.ours->run != section.lines[0].ours->run; });
  Table table;
  for (const char* title : {"case", "shape", "dtype"}) add_column(table, title, false);
  add_column(table, "time (us)", true);
  add_column(table, "floor (us)", true);
  add_column(table, "time / floor", true);
  for (const std::string& peer : section.peers) add_column(table, peer + " (us)", true);
  if (several_runs) add_column(table, "run", false);
  for (const CaseLine& line : section.lines) {
    const ReportRow& ours = *line.ours;
    std::vector<std::string> cells = {ours.case_name,
                                      shape_text(line),
                                      ours.dtype,
                                      time_text(ours),
                                      three_digits(ours.floor_us),
                                      fixed(ratio(ours.median_us, ours.floor_us), 2)};
    for (const PeerCell& peer : line.peers) cells.push_back(peer_text(peer, ours));
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
         ours.p10_us && ours.p90_us
             ? fmt::format("{} to {}", three_digits(ours.p10_us), three_digits(ours.p90_us))
             : "-",
         ours.error ? fmt::format("{:.1e} ({})", *ours.error, ours.error_metric) : "-",
         ours.variant.empty() ? "-" : ours.variant, ours.run});
  }
  return table;
}

std::vector<std::string> failures(const OpSection& section) {
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
  for (const CaseLine& line : section.lines) {
    add(*line.ours);
    for (const PeerCell& peer : line.peers) {
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

std::vector<std::string> run_settings(const std::vector<const ReportRun*>& runs) {
  std::vector<std::pair<std::string, std::vector<std::string>>> settings;  // ids by text
  for (const ReportRun* run : runs) {
    const std::string setting = describe_setting(*run);
    auto at = std::find_if(settings.begin(), settings.end(),
                           [&](const auto& one) { return one.first == setting; });
    if (at == settings.end()) at = settings.insert(at, {setting, {}});
    at->second.push_back(run->id);
  }
  std::vector<std::string> texts;
  texts.reserve(settings.size());
  for (const auto& [setting, ids] : settings) {
    texts.push_back(fmt::format("{}: {}", fmt::join(ids, ", "), setting));
  }
  return texts;
}

Table runs_table(const std::vector<const ReportRun*>& runs) {
  Table table;
  for (const char* title : {"run", "commit"}) add_column(table, title, false);
  for (const char* title : {"SM clock (MHz)", "power (W)", "copy (TB/s)", "bf16 (TFLOP/s)"}) {
    add_column(table, title, true);
  }
  add_column(table, "command", false);
  for (const ReportRun* run : runs) {
    const auto number = [&](const char* group, const char* name) {
      const auto at = run->json.find(group);
      const bool known = at != run->json.end() && at->is_object();
      return three_digits(known ? number_of(*at, name) : std::nullopt);
    };
    table.rows.push_back({run->id, text_of(run->json, "commit"), number("device", "sm_clock_mhz"),
                          number("device", "power_w"), number("ceilings", "copy_tbps"),
                          number("ceilings", "bf16_tflops"),
                          "`" + short_command(text_of(run->json, "command")) + "`"});
  }
  return table;
}

std::string shape_text(const Case& one, const std::string& left_out) {
  const auto has = [&](const char* letter) { return one.axes.count(letter) != 0; };
  const auto same = [&](const char* a, const char* b) {
    return has(a) && has(b) && one.axis(a) == one.axis(b);
  };
  std::vector<std::string> axes;
  for (const std::string letter :
       {"B", "H", "HQ", "HKV", "T", "TK", "M", "K", "V", "d", "D", "F"}) {
    if (!one.axes.count(letter) || letter == left_out) continue;
    if ((letter == "HQ" && same("HQ", "H")) || (letter == "V" && same("V", "K"))) continue;
    if ((letter == "HKV" && same("HKV", "H")) || (letter == "TK" && same("TK", "T"))) continue;
    const bool square = letter == "K" && same("V", "K");
    axes.push_back(fmt::format("{}{}", square ? "D" : letter, one.axis(letter)));
  }
  if (!one.segments.empty()) {
    const auto add = [](std::int64_t sum, const std::string& segment) {
      return sum + std::stoll(segment);  // its columns come first
    };
    axes.push_back(fmt::format(
        "{} columns",
        std::accumulate(one.segments.begin(), one.segments.end(), std::int64_t{0}, add)));
  }
  if (one.causal) axes.push_back("causal");
  std::string text = fmt::format("{}", fmt::join(axes, " "));
  if (!one.cu_seqlens) return text;
  return fmt::format("{}, {} sequences", text, one.cu_seqlens->size() - 1);
}

std::string shape_text(const CaseLine& line) {
  if (!line.known) return "-";
  return shape_text(*line.known, line.ours->direction == "step" ? "T" : "");
}

std::string direction_title(const std::string& direction) {
  if (direction == "forward_backward") return "forward + backward";
  std::string title = direction;
  std::replace(title.begin(), title.end(), '_', ' ');
  return title;
}

}  // namespace tandem::tools
