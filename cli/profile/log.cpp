#include "cli/profile/log.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/files/files.h"
#include "cli/report/data.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Rounds values: counts and bytes whole, the rest to four digits.
Json number(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) {
    return static_cast<std::int64_t>(value);
  }
  return rounded(value);
}

Json values_json(const Counters& counters, bool of_launch) {
  Json json = Json::object();
  for (const CounterField& field : kCounterFields) {
    const bool launch = std::string_view(field.metric).rfind("launch__", 0) == 0;
    const auto value = counters.get(field.name);
    if (value && launch == of_launch) json[field.name] = number(*value);
  }
  return json;
}

bool same_call(const Json& a, const Json& b) {
  for (const char* field : {"device", "op", "direction", "case", "dtype"}) {
    if (text_of(a, field) != text_of(b, field)) return false;
  }
  return true;
}

}  // namespace

Json counters_json(const Profile& profile) {
  Json json = {{"run", ""}, {"median_us", rounded(profile.row.timing.median_us)}};
  json["launches"] = profile.launches;
  json.update(values_json(profile.total, false));
  json.update(values_json(profile.total, true));
  if (!profile.reading.empty()) json["reading"] = profile.reading;
  return json;
}

Json append_iteration(const std::string& path, const Iteration& iteration, const Profile& profile) {
  const ResultsRow& row = profile.row;
  Json line = {{"date", today()},
               {"commit", iteration.run.commit},
               {"device", iteration.run.device_name},
               {"op", row.op},
               {"direction", row.direction},
               {"case", row.case_name},
               {"dtype", row.dtype},
               {"variant", row.variant},
               {"note", iteration.note},
               {"median_us", rounded(row.timing.median_us)},
               {"p10_us", rounded(row.timing.p10_us)},
               {"p90_us", rounded(row.timing.p90_us)},
               {"bytes", number(row.cost.bytes)},
               {"floor_us", rounded(row.floor_us)},
               {"config", values_json(profile.total, true)},
               {"counters", values_json(profile.total, false)}};
  if (!profile.reading.empty()) line["reading"] = profile.reading;
  const double us = line["median_us"];
  double first = 0, previous = 0;
  const bool exists = std::filesystem::is_regular_file(path);
  for (const Json& before : exists ? read_log(path) : std::vector<Json>()) {
    const double time = number_of(before, "median_us").value_or(0);
    if (time <= 0 || !same_call(before, line)) continue;
    if (first == 0) first = time;
    previous = time;
  }
  if (previous > 0) line["time_over_previous"] = rounded(us / previous);
  if (first > 0) line["time_over_first"] = rounded(us / first);
  make_folder_of(path);
  std::string text = exists ? read_text(path) : "";
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  write_file(path, text + line.dump() + "\n");
  return line;
}

}  // namespace tandem::tools
