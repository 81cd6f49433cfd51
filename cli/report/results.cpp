#include "cli/report/results.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "cli/calls/backend.h"
#include "cli/files/files.h"
#include "cli/files/json.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

Json state_json(const gpu::State& state) {
  if (!state.known) return nullptr;
  return {{"driver", state.driver},
          {"sm_clock_mhz", state.sm_clock_mhz},
          {"power_w", state.power_w},
          {"throttle_reasons", fmt::format("{:#x}", state.throttle_reasons)}};
}

Json run_json(const ResultsRun& run, const std::string& date) {
  Json device = {{"name", run.device_name}};
  const Json state = state_json(run.state);
  if (!state.is_null()) device.update(state);
  Json json = {{"device", device},
               {"commit", run.commit},
               {"date", date},
               {"command", run.command},
               {"timer", {{"method", run.timer}, {"l2", run.cold ? "cold" : "warm"}}}};
  if (run.ceilings.copy_tbps > 0) {
    json["ceilings"] = {{"copy_tbps", rounded(run.ceilings.copy_tbps)},
                        {"bf16_tflops", rounded(run.ceilings.bf16_tflops)}};
  }
  if (!run.versions.empty()) json["versions"] = run.versions;
  return json;
}

Json row_json(const ResultsRow& row, const std::string& run_id) {
  Json json = {{"run", run_id},
               {"op", row.op},
               {"direction", row.direction},
               {"case", row.case_name},
               {"dtype", row.dtype},
               {"provider", row.provider},
               {"variant", row.variant},
               {"median_us", rounded(row.timing.median_us)},
               {"p10_us", rounded(row.timing.p10_us)},
               {"p90_us", rounded(row.timing.p90_us)}};
  if (row.plan_us) {
    json["plan_us"] = rounded(*row.plan_us);
  } else {
    json["bytes"] = static_cast<std::int64_t>(row.cost.bytes);
    json["flops"] = static_cast<std::int64_t>(row.cost.flops);
    json["floor_us"] = rounded(row.floor_us);
  }
  json["error"] = {{"metric", "rel_rms"}, {"value", rounded(row.error)}};
  if (row.state.known) {
    json["sm_clock_mhz"] = row.state.sm_clock_mhz;
    json["power_w"] = row.state.power_w;
    json["throttle_reasons"] = fmt::format("{:#x}", row.state.throttle_reasons);
  }
  return json;
}

/// Writes one run or row per line, so that a diff shows what changed.
std::string file_text(const Json& json) {
  std::vector<std::string> runs, rows;
  for (const auto& [id, run] : json["runs"].items()) {
    runs.push_back(fmt::format("  {}: {}", Json(id).dump(), run.dump()));
  }
  for (const Json& row : json["rows"]) rows.push_back("  " + row.dump());
  return fmt::format("{{\"schema\": 1,\n \"runs\": {{\n{}\n }},\n \"rows\": [\n{}\n ]}}\n",
                     fmt::join(runs, ",\n"), fmt::join(rows, ",\n"));
}

bool same_key(const Json& a, const Json& b) {
  for (const char* field : {"run", "op", "direction", "case", "dtype", "provider"}) {
    if (text_of(a, field) != text_of(b, field)) return false;
  }
  return true;
}

/// Finds the row that `row` describes, of the latest run; null without one.
Json* latest_row(Json& json, const ResultsRow& row) {
  std::vector<std::string> dates;  // of one day: in the order of the file
  std::map<std::string, std::size_t> order;
  for (const auto& [id, run] : json["runs"].items()) {
    order[id] = dates.size();
    dates.push_back(text_of(run, "date"));
  }
  Json* latest = nullptr;
  std::pair<std::string, std::size_t> newest;
  for (Json& one : json["rows"]) {
    const auto is = [&](const char* field, const std::string& wanted) {
      return one.contains(field) && one[field] == wanted;
    };
    const bool same = is("op", row.op) && is("direction", row.direction) &&
                      is("case", row.case_name) && is("dtype", row.dtype) &&
                      is("provider", row.provider) &&
                      (is("variant", row.variant) ||
                       (row.chosen && (is("variant", "") || is("variant", kLibraryChoice))));
    const auto at = order.find(text_of(one, "run"));
    if (!same || at == order.end()) continue;
    const std::pair age{dates[at->second], at->second};
    if (latest != nullptr && age < newest) continue;
    latest = &one;
    newest = age;
  }
  return latest;
}

/// Ids of runs in any results file of the folder: the files of a device share one series.
std::set<std::string> taken_ids(const std::filesystem::path& folder) {
  std::set<std::string> ids;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    if (entry.path().extension() != ".json") continue;
    try {
      const Json json = read_results(entry.path());
      for (const auto& [id, run] : json["runs"].items()) ids.insert(id);
    } catch (const std::runtime_error&) {
      continue;  // another file
    }
  }
  return ids;
}

/// Refuses numbers that no measurement gives; charts have logarithmic scales.
void require_measured(const Json& json, std::initializer_list<const char*> fields,
                      const std::string& place) {
  constexpr double kLeast = 1e-9, kMost = 1e18;
  for (const char* field : fields) {
    const double value = number_of(json, field).value_or(0);
    if (value == 0 || (value >= kLeast && value <= kMost)) continue;
    throw std::runtime_error(
        fmt::format("{}: {}: must be 0 or from 1e-9 to 1e18, got {}", place, field, value));
  }
}

}  // namespace

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::pow(10.0, std::floor(std::log10(std::fabs(value))) - 3);
  return std::stod(fmt::format("{:.4g}", std::round(value / unit) * unit));
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

Json read_results(const std::string& path) {
  const auto kind = std::filesystem::status(path).type();
  using Type = std::filesystem::file_type;
  if (kind != Type::regular && kind != Type::directory) {
    return {{"schema", 1}, {"runs", Json::object()}, {"rows", Json::array()}};
  }
  Json json = parse_json<Json>(read_text(path), path);
  const auto require_object = [](const Json& value, const std::string& place) {
    if (value.is_object()) return;
    throw std::runtime_error(
        fmt::format("{}: must be an object, got {}", place, shown_json(value)));
  };
  const auto require = [&](bool good, const std::string& text) {
    if (!good) throw std::runtime_error(path + ": " + text);
  };
  const auto part = [&](const char* name) {
    return json.is_object() && json.contains(name) ? json.at(name) : Json();
  };
  require(json.is_object(), "must be a JSON object");
  require(part("schema") == 1, "schema: must be 1, got " + shown_json(part("schema")));
  require(part("runs").is_object(), "runs: must be an object");
  require(part("rows").is_array(), "rows: must be a list");
  for (const auto& [id, run] : json["runs"].items()) {
    const std::string place = fmt::format("{}: run {}", path, shown(id));
    require_object(run, place);
    require_kind(run, {"commit", "date", "command"}, Kind::kText, place);
    require_kind(run, {"device", "timer", "ceilings", "versions", "missing"}, Kind::kObject, place);
    if (run.contains("ceilings")) {
      require_measured(run["ceilings"], {"copy_tbps", "bf16_tflops"}, place + ": ceilings");
    }
  }
  int number = 0;
  for (const Json& row : json["rows"]) {
    const std::string place = fmt::format("{}: row {}", path, ++number);
    require_object(row, place);
    require_kind(row, {"run", "op", "direction", "case", "dtype", "provider", "variant", "failure"},
                 Kind::kText, place);
    require_kind(row, {"counters"}, Kind::kObject, place);
    require_measured(row, {"median_us", "p10_us", "p90_us", "floor_us", "bytes", "flops"}, place);
  }
  return json;
}

ResultsFile::ResultsFile(std::string path, std::string run_id, const ResultsRun& run)
    : path_(std::move(path)), run_id_(std::move(run_id)), run_(run) {
  read_results(path_);  // throws now for what is no results file
  const auto folder = std::filesystem::path(path_).parent_path();
  const std::set<std::string> taken = taken_ids(folder.empty() ? "." : folder);
  std::string date = today();
  std::erase(date, '-');
  for (int i = 1; run_id_.empty(); ++i) {
    const std::string id = fmt::format("{}-{}", date, i);
    if (!taken.count(id)) run_id_ = id;
  }
}

void ResultsFile::add(const ResultsRow& row) {
  Json json = read_results(path_);  // again: another tool may have written meanwhile
  const Json added = row_json(row, run_id_);
  add_run(json, row);
  bool replaced = false;
  for (Json& existing : json["rows"]) {
    if (!same_key(existing, added)) continue;
    existing = added;
    replaced = true;
  }
  if (!replaced) json["rows"].push_back(added);
  write(json);
}

bool ResultsFile::add_counters(const ResultsRow& row, Json counters) {
  Json json = read_results(path_);
  Json* existing = latest_row(json, row);
  if (existing == nullptr) return false;
  counters["run"] = run_id_;
  (*existing)["counters"] = std::move(counters);
  add_run(json, row);
  write(json);
  return true;
}

void ResultsFile::add_run(Json& json, const ResultsRow& row) {
  run_.state = row.state.known ? row.state : run_.state;
  Json& run = json["runs"][run_id_];
  if (run.is_null()) run = Json::object();
  run.update(run_json(run_, today()));
}

void ResultsFile::write(const Json& json) const {
  make_folder_of(path_);
  write_file(path_, file_text(json));
}

}  // namespace tandem::tools
