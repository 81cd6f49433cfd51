#include "report_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "profile_print.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string fixed(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::optional<double> number_of(const Json& json, const char* field) {
  const auto at = json.find(field);
  return at != json.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

std::string text_of(const Json& json, const char* field) {
  const auto at = json.find(field);
  return at == json.end() || !at->is_string() ? "" : at->get<std::string>();
}

std::optional<double> ratio(std::optional<double> a, std::optional<double> b) {
  return a && b && *b > 0 ? std::optional(*a / *b) : std::nullopt;
}

std::string bytes_of(std::optional<double> value) { return value ? bytes_text(*value) : "-"; }

std::string peer_text(const PeerCell& peer, const ReportRow& ours) {
  if (peer.row == nullptr) return "-";
  std::string text = "failed";
  if (peer.row->timed()) text = fixed(peer.row->median_us, 1);
  if (peer.ratio) text += fmt::format(" ({:.2f}x)", *peer.ratio);
  if (peer.row->run != ours.run) text += " in " + peer.row->run;
  return text;
}

/// The lines that a detail shows: of kBrief the first dtype of each case.
std::vector<const CaseLine*> lines_of(const OpSection& section, Detail detail) {
  std::vector<const CaseLine*> lines;
  std::set<std::string> seen;
  for (const CaseLine& line : section.lines) {
    if (seen.insert(line.ours->case_name).second || detail == Detail::kFull) lines.push_back(&line);
  }
  return lines;
}

void add_column(Table& table, const std::string& title, bool numeric) {
  table.header.push_back(title);
  table.numeric.push_back(numeric);
}

}  // namespace

Table results_table(const OpSection& section, Detail detail) {
  const std::vector<const CaseLine*> lines = lines_of(section, detail);
  const bool several_runs = std::any_of(lines.begin(), lines.end(), [&](const CaseLine* line) {
    return line->ours->run != lines[0]->ours->run;
  });
  const bool full = detail == Detail::kFull;
  Table table;
  add_column(table, "case", false);
  add_column(table, "dtype", false);
  add_column(table, "time (us)", true);
  add_column(table, "floor (us)", true);
  add_column(table, "time / floor", true);
  for (const std::string& peer : section.peers) add_column(table, peer + " (us)", true);
  if (full) {
    add_column(table, "p10 to p90 (us)", true);
    add_column(table, "error", false);
    add_column(table, "variant", false);
  }
  if (full || several_runs) add_column(table, "run", false);
  for (const CaseLine* line : lines) {
    const ReportRow& ours = *line->ours;
    std::vector<std::string> cells = {
        ours.case_name, ours.dtype, ours.timed() ? fixed(ours.median_us, 1) : "failed",
        fixed(ours.floor_us, 1), fixed(ratio(ours.median_us, ours.floor_us), 2)};
    for (const PeerCell& peer : line->peers) cells.push_back(peer_text(peer, ours));
    if (full) {
      cells.push_back(ours.p10_us && ours.p90_us
                          ? fmt::format("{:.1f} to {:.1f}", *ours.p10_us, *ours.p90_us)
                          : "-");
      cells.push_back(ours.error ? fmt::format("{:.1e} ({})", *ours.error, ours.error_metric)
                                 : "-");
      cells.push_back(ours.variant.empty() ? "-" : ours.variant);
    }
    if (full || several_runs) cells.push_back(ours.run);
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table counters_table(const OpSection& section) {
  Table table;
  for (const char* title : {"case", "dtype"}) add_column(table, title, false);
  for (const char* title :
       {"time (us)", "DRAM read", "DRAM written", "of fewest", "L1 writes", "L2 traffic",
        "tensor pipe %", "occupancy %", "registers", "shared memory", "spills", "wgmma"}) {
    add_column(table, title, true);
  }
  for (const char* title : {"reading", "run"}) add_column(table, title, false);
  for (const CaseLine& line : section.lines) {
    const Json& counters = line.ours->counters;
    if (!counters.is_object()) continue;
    const auto get = [&](const char* name) { return number_of(counters, name); };
    const auto read = get("dram_read_bytes"), write = get("dram_write_bytes");
    const auto moved = read && write ? std::optional(*read + *write) : std::nullopt;
    const auto loads = get("spill_loads"), stores = get("spill_stores");
    const auto spills =
        loads || stores ? std::optional(loads.value_or(0) + stores.value_or(0)) : std::nullopt;
    const std::string reading = text_of(counters, "reading");
    const auto of_fewest = ratio(moved, line.ours->bytes);
    table.rows.push_back(
        {line.ours->case_name, line.ours->dtype, fixed(get("median_us"), 1), bytes_of(read),
         bytes_of(write), of_fewest ? fixed(of_fewest, 2) + "x" : "-",
         bytes_of(get("l1_write_bytes")), bytes_of(get("l2_bytes")),
         fixed(get("tensor_pipe_pct"), 1), fixed(get("occupancy_pct"), 1),
         fixed(get("registers"), 0), bytes_of(get("shared_bytes")), fixed(spills, 0),
         fixed(get("wgmma"), 0), reading.empty() ? "-" : reading, text_of(counters, "run")});
  }
  return table;
}

Table iterations_table(const std::vector<Json>& lines) {
  Table table;
  add_column(table, "iteration", true);
  add_column(table, "what changed", false);
  for (const char* title : {"time (us)", "floor (us)", "tensor pipe %", "DRAM bytes", "registers",
                            "against previous", "against first"}) {
    add_column(table, title, true);
  }
  add_column(table, "variant", false);
  add_column(table, "commit", false);
  int i = 0;
  std::optional<double> first, previous;
  for (const Json& line : lines) {
    const Json counters = line.value("counters", Json::object());
    const auto us = number_of(line, "median_us");
    const auto read = number_of(counters, "dram_read_bytes");
    const auto write = number_of(counters, "dram_write_bytes");
    const auto faster = [&](std::optional<double> before) {
      const auto times = ratio(before, us);
      return times ? fixed(times, 2) + "x" : std::string("-");
    };
    table.rows.push_back(
        {std::to_string(++i), text_of(line, "note"), fixed(us, 1),
         fixed(number_of(line, "floor_us"), 1), fixed(number_of(counters, "tensor_pipe_pct"), 1),
         read && write ? bytes_text(*read + *write) : "-",
         fixed(number_of(line.value("config", Json::object()), "registers"), 0), faster(previous),
         faster(first), text_of(line, "variant"), text_of(line, "commit")});
    if (!first) first = us;
    if (us) previous = us;
  }
  return table;
}

std::vector<std::string> failures(const OpSection& section, Detail detail) {
  // why by text: a peer mostly fails for one reason in all cases.
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
    texts.push_back(fmt::format("{}, {}: {}", key.first, fmt::join(cases, ", "), reason));
  }
  return texts;
}

std::string describe_run(const ReportRun& run) {
  const Json& json = run.json;
  const auto object = [&](const char* name) {
    return json.contains(name) && json[name].is_object() ? json[name] : Json::object();
  };
  const Json device = object("device"), ceilings = object("ceilings"), timer = object("timer");
  const Json versions = object("versions");  // named: items() refers to it
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
  facts.push_back("commit " + text_of(json, "commit"));
  facts.push_back(text_of(json, "date"));
  facts.push_back("`" + text_of(json, "command") + "`");
  return fmt::format("{}", fmt::join(facts, ", "));
}

std::string direction_title(const std::string& direction) {
  std::string title = direction;
  if (const std::size_t at = title.find('_'); at != std::string::npos) title.replace(at, 1, " + ");
  return title;
}

}  // namespace tandem::tools
