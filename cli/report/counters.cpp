// Tables of counters, and of the versions of a kernel that counters were logged of.
#include <fmt/format.h>

#include "cli/report/tables.h"
#include "cli/report/text.h"

namespace tandem::tools {
using Json = nlohmann::ordered_json;

Table readings_table(const OpSection& section) {
  Table table;
  for (const char* title : {"case", "dtype"}) add_column(table, title, false);
  add_column(table, "time (us)", true);
  for (const char* title : {"reading", "run"}) add_column(table, title, false);
  for (const CaseLine& line : section.lines) {
    const Json& counters = line.ours->counters;
    if (!counters.is_object()) continue;
    const std::string reading = text_of(counters, "reading");
    table.rows.push_back({line.ours->case_name, line.ours->dtype,
                          three_digits(number_of(counters, "median_us")),
                          reading.empty() ? "-" : reading, text_of(counters, "run")});
  }
  return table;
}

Table counters_table(const OpSection& section) {
  Table table;
  for (const char* title : {"case", "dtype"}) add_column(table, title, false);
  for (const char* title :
       {"DRAM read", "DRAM written", "of fewest", "L1 writes", "L2 traffic", "tensor pipe %",
        "occupancy %", "registers", "shared memory", "spills", "wgmma"}) {
    add_column(table, title, true);
  }
  for (const CaseLine& line : section.lines) {
    const Json& counters = line.ours->counters;
    if (!counters.is_object()) continue;
    const auto get = [&](const char* name) { return number_of(counters, name); };
    const auto read = get("dram_read_bytes"), write = get("dram_write_bytes");
    const auto moved = read && write ? std::optional(*read + *write) : std::nullopt;
    const auto loads = get("spill_loads"), stores = get("spill_stores");
    const auto spills =
        loads || stores ? std::optional(loads.value_or(0) + stores.value_or(0)) : std::nullopt;
    const auto of_fewest = ratio(moved, line.ours->bytes);
    table.rows.push_back({line.ours->case_name, line.ours->dtype, bytes_of(read), bytes_of(write),
                          of_fewest ? fixed(of_fewest, 2) + "x" : "-",
                          bytes_of(get("l1_write_bytes")), bytes_of(get("l2_bytes")),
                          fixed(get("tensor_pipe_pct"), 1), fixed(get("occupancy_pct"), 1),
                          fixed(get("registers"), 0), bytes_of(get("shared_bytes")),
                          fixed(spills, 0), fixed(get("wgmma"), 0)});
  }
  return table;
}

std::vector<std::pair<std::string, std::vector<Json>>> iteration_groups(
    const std::vector<Json>& lines) {
  std::vector<std::pair<std::string, std::vector<Json>>> groups;
  for (const Json& line : lines) {
    const std::string name =
        fmt::format("{} {} {} on {}", text_of(line, "direction"), text_of(line, "case"),
                    text_of(line, "dtype"), text_of(line, "device"));
    std::size_t g = 0;
    while (g < groups.size() && groups[g].first != name) ++g;
    if (g == groups.size()) groups.push_back({name, {}});
    groups[g].second.push_back(line);
  }
  return groups;
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

}  // namespace tandem::tools
