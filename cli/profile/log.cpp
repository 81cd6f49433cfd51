#include "cli/profile/log.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

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

std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream stream(path);
  int at = 0;
  for (std::string text; std::getline(stream, text);) {
    ++at;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) {
      throw std::runtime_error(fmt::format("{}:{}: not a JSON object", path, at));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

bool same_call(const Json& a, const Json& b) {
  for (const char* field : {"device", "op", "direction", "case", "dtype"}) {
    if (a.value(field, "") != b.value(field, "")) return false;
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
  for (const Json& before : read_lines(path)) {
    const double time = same_call(before, line) ? before.value("median_us", 0.0) : 0.0;
    if (time <= 0) continue;
    if (first == 0) first = time;
    previous = time;
  }
  if (previous > 0) line["time_over_previous"] = rounded(us / previous);
  if (first > 0) line["time_over_first"] = rounded(us / first);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  std::ofstream stream(path, std::ios::app);
  stream << line.dump() << '\n';
  if (!stream.flush()) throw std::runtime_error(path + ": cannot write");
  return line;
}

}  // namespace tandem::tools
