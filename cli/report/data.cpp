#include "cli/report/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <stdexcept>

#include "cli/files/files.h"
#include "cli/files/json.h"
#include "cli/report/results.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

ReportRow parse_row(const Json& json) {
  ReportRow row;
  row.run = text_of(json, "run");
  row.op = text_of(json, "op");
  row.direction = text_of(json, "direction");
  row.case_name = text_of(json, "case");
  row.dtype = text_of(json, "dtype");
  row.provider = text_of(json, "provider");
  row.variant = text_of(json, "variant");
  row.median_us = number_of(json, "median_us");
  row.first_call_s = number_of(json, "first_call_s");
  row.plan_us = number_of(json, "plan_us");
  row.p10_us = number_of(json, "p10_us");
  row.p90_us = number_of(json, "p90_us");
  row.floor_us = number_of(json, "floor_us");
  row.bytes = number_of(json, "bytes");
  row.flops = number_of(json, "flops");
  if (const auto error = json.find("error"); error != json.end() && error->is_object()) {
    row.error = number_of(*error, "value");
    row.error_metric = text_of(*error, "metric");
  } else {
    row.failure = text_of(json, "error");
  }
  if (json.contains("failure")) row.failure = text_of(json, "failure");
  // Drops the time of a wrong result.
  if (!row.failure.empty() || row.median_us.value_or(0) <= 0) row.median_us.reset();
  if (row.failure.empty() && !row.timed()) row.failure = "not timed";
  if (json.contains("counters")) row.counters = json["counters"];
  return row;
}

using Providers = std::map<std::string, const ReportRow*>;  // of one run

/// One case and dtype, by the age of the run.
using ByRun = std::map<std::size_t, Providers>;

constexpr const char* kOurs = "tandem";

const ReportRow* find_ours(const ByRun& runs, bool timed) {
  const ReportRow* latest = nullptr;
  for (const auto& [age, providers] : runs) {
    const auto at = providers.find(kOurs);
    if (at != providers.end() && at->second->timed() == timed) latest = at->second;
  }
  return latest;
}

PeerCell find_peer(const ByRun& runs, const std::string& peer) {
  PeerCell cell;
  for (const auto& [age, providers] : runs) {
    const auto ours = providers.find(kOurs), other = providers.find(peer);
    if (ours == providers.end() || other == providers.end()) continue;
    cell = {other->second, std::nullopt};
    if (ours->second->timed() && other->second->timed()) {
      cell.ratio = *other->second->median_us / *ours->second->median_us;
    }
  }
  return cell;
}

/// Tells whether a peer is one of Tandem's own baselines (bench/cuda/unfused.h).
bool is_baseline(const std::string& peer) { return peer == "unfused" || peer == "composed"; }

}  // namespace

std::size_t ReportFile::age(const std::string& run) const {
  const auto at = std::find_if(runs.begin(), runs.end(), [&](auto& one) { return one.id == run; });
  return at - runs.begin();
}

double ReportFile::ceiling(const std::string& run, const char* name) const {
  const std::size_t at = age(run);
  if (at == runs.size() || !runs[at].json.contains("ceilings")) return 0;
  const Json& ceilings = runs[at].json["ceilings"];
  return ceilings.is_object() ? number_of(ceilings, name).value_or(0) : 0;
}

ReportFile load_file(const std::string& path) {
  const Json json = read_results(path);
  const fs::path whole = fs::absolute(path);
  ReportFile file;
  file.device = whole.parent_path().filename().string();
  file.name = whole.filename().string();
  for (const auto& [id, run] : json["runs"].items()) file.runs.push_back({id, run});
  std::stable_sort(file.runs.begin(), file.runs.end(), [](const auto& a, const auto& b) {
    return text_of(a.json, "date") < text_of(b.json, "date");
  });
  for (const Json& row : json["rows"]) {
    file.rows.push_back(parse_row(row));
    const ReportRow& last = file.rows.back();
    if (json["runs"].contains(last.run)) continue;
    throw std::runtime_error(fmt::format("{}: row {} names run {}, which the file lacks", path,
                                         shown(last.case_name), shown(last.run)));
  }
  return file;
}

std::vector<ReportFile> load_results(const std::string& folder) {
  std::vector<ReportFile> files;
  for (const fs::path& device : entries(folder)) {
    for (const fs::path& path : entries(device)) {
      if (path.extension() == ".json") files.push_back(load_file(path));
    }
  }
  return files;
}

std::vector<std::string> repeated_runs(const std::vector<ReportFile>& files) {
  std::map<std::pair<std::string, std::string>, std::string> first;  // file by device and run
  std::vector<std::string> texts;
  for (const ReportFile& file : files) {
    for (const ReportRun& run : file.runs) {
      const auto [at, added] = first.emplace(std::pair(file.device, run.id), file.name);
      if (added) continue;
      texts.push_back(fmt::format("{}: run {} is in {} and in {}", file.device, shown(run.id),
                                  at->second, file.name));
    }
  }
  return texts;
}

bool is_yardstick(const std::string& op, const std::string& peer) {
  return op != "attention" && peer.starts_with("sdpa");
}

std::vector<Json> read_log(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream stream(read_text(path));
  int number = 0;
  for (std::string text; std::getline(stream, text);) {
    const std::string place = fmt::format("{}:{}", path, ++number);
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json line = parse_json<Json>(text, place);
    if (!line.is_object()) throw std::runtime_error(place + ": must be a JSON object");
    require_kind(line, {"device", "op", "direction", "case", "dtype", "variant", "note", "commit"},
                 Kind::kText, place);
    require_kind(line, {"median_us", "floor_us"}, Kind::kNumber, place);
    require_kind(line, {"config", "counters"}, Kind::kObject, place);
    lines.push_back(line);
  }
  return lines;
}

std::map<std::string, std::vector<Json>> load_iterations(const std::string& folder) {
  const std::string suffix = ".iterations.jsonl";
  std::map<std::string, std::vector<Json>> by_op;
  for (const fs::path& path : entries(folder)) {
    const std::string name = path.filename().string();
    if (name.size() <= suffix.size() || !name.ends_with(suffix)) continue;
    by_op[name.substr(0, name.size() - suffix.size())] = read_log(path);
  }
  return by_op;
}

const PeerCell* CaseLine::fastest_peer() const {
  const PeerCell* fastest = nullptr;
  for (const PeerCell& peer : peers) {
    if (!peer.ratio || is_yardstick(peer.row->op, peer.row->provider)) continue;
    if (fastest == nullptr || *peer.ratio < *fastest->ratio) fastest = &peer;
  }
  return fastest;
}

std::string OpSection::main_dtype() const {
  const bool has_bf16 = std::any_of(
      lines.begin(), lines.end(), [](const CaseLine& line) { return line.ours->dtype == "bf16"; });
  return has_bf16 ? "bf16" : lines.front().ours->dtype;
}

std::vector<OpSection> select_sections(const ReportFile& file) {
  std::vector<OpSection> sections;
  std::map<std::string, std::map<std::string, Case>> known;            // by op and name
  std::vector<std::vector<std::pair<const ReportRow*, ByRun>>> cases;  // of each section
  for (const ReportRow& row : file.rows) {
    const auto section = std::find_if(sections.begin(), sections.end(), [&](auto& one) {
      return one.op == row.op && one.direction == row.direction;
    });
    const std::size_t s = section - sections.begin();
    if (section == sections.end()) {
      sections.push_back({row.op, row.direction, {}, {}});
      cases.emplace_back();
      const auto [table, added] = known.emplace(row.op, std::map<std::string, Case>());
      if (added) {
        for (Case& one : known_cases(row.op)) table->second.emplace(one.name, std::move(one));
      }
    }
    auto same = std::find_if(cases[s].begin(), cases[s].end(), [&](auto& one) {
      return one.first->case_name == row.case_name && one.first->dtype == row.dtype;
    });
    if (same == cases[s].end()) same = cases[s].insert(same, {&row, {}});
    same->second[file.age(row.run)][row.provider] = &row;
  }
  for (std::size_t s = 0; s < sections.size(); ++s) {
    // Keeps only peers that some run has beside Tandem: the others cannot be compared.
    std::set<std::string> peers;
    for (const auto& [row, runs] : cases[s]) {
      for (const auto& [age, providers] : runs) {
        if (!providers.count(kOurs)) continue;
        for (const auto& [provider, one] : providers) peers.insert(provider);
      }
    }
    peers.erase(kOurs);
    sections[s].peers.assign(peers.begin(), peers.end());
    std::stable_partition(sections[s].peers.begin(), sections[s].peers.end(), is_baseline);
    for (const auto& [row, runs] : cases[s]) {
      CaseLine line;
      line.ours = find_ours(runs, true);
      if (line.ours == nullptr) line.ours = find_ours(runs, false);
      if (line.ours == nullptr) continue;
      for (const std::string& peer : sections[s].peers) line.peers.push_back(find_peer(runs, peer));
      const auto& table = known[sections[s].op];
      if (const auto at = table.find(row->case_name); at != table.end()) line.known = at->second;
      sections[s].lines.push_back(std::move(line));
    }
  }
  std::erase_if(sections, [](const OpSection& section) { return section.lines.empty(); });
  return sections;
}

std::vector<OpReport> select_ops(const std::vector<ReportFile>& files) {
  std::vector<OpReport> ops;
  for (const CaseSchema& schema : case_schemas()) ops.push_back({schema.op, {}});
  std::map<std::string, std::size_t> rows;  // by device
  for (const ReportFile& file : files) rows[file.device] += file.rows.size();
  for (const ReportFile& file : files) {
    for (OpSection& section : select_sections(file)) {
      auto op = std::find_if(ops.begin(), ops.end(),
                             [&](const OpReport& one) { return one.op == section.op; });
      if (op == ops.end()) op = ops.insert(op, {section.op, {}});
      if (op->places.empty() || op->places.back().file != &file) op->places.push_back({&file, {}});
      op->places.back().sections.push_back(std::move(section));
    }
  }
  std::erase_if(ops, [](const OpReport& op) { return op.places.empty(); });
  const auto& directions = direction_names();
  const auto rank = [&](const OpSection& section) {
    const auto at = std::find(directions.begin(), directions.end(), section.direction);
    return std::pair(!section.is_whole_call(), at - directions.begin());
  };
  for (OpReport& op : ops) {
    for (OpPlace& place : op.places) {
      std::stable_sort(place.sections.begin(), place.sections.end(),
                       [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    }
    std::stable_sort(op.places.begin(), op.places.end(), [&](const OpPlace& a, const OpPlace& b) {
      return rows[a.file->device] > rows[b.file->device];
    });
  }
  return ops;
}

std::optional<double> launch_us(const std::vector<ReportFile>& files, const std::string& device) {
  constexpr double kShort = 10, kMostly = 2;
  std::optional<double> least;
  for (const ReportFile& file : files) {
    if (file.device != device) continue;
    for (const ReportRow& row : file.rows) {
      if (!row.timed() || !row.floor_us || *row.median_us < kMostly * *row.floor_us) continue;
      if (*row.median_us < least.value_or(kShort)) least = row.median_us;
    }
  }
  return least;
}

std::vector<Case> known_cases(const std::string& op) {
  const auto is = [&](const CaseSchema& schema) { return schema.op == op; };
  const bool known = std::any_of(case_schemas().begin(), case_schemas().end(), is);
  return known ? load_cases(op) : std::vector<Case>();
}

std::vector<const ReportRun*> shown_runs(const ReportFile& file,
                                         const std::vector<OpSection>& sections, bool counters) {
  std::set<std::string> shown;
  for (const OpSection& section : sections) {
    for (const CaseLine& line : section.lines) {
      shown.insert(line.ours->run);
      if (counters && line.ours->counters.is_object())
        shown.insert(text_of(line.ours->counters, "run"));
      for (const PeerCell& peer : line.peers) {
        if (peer.row != nullptr) shown.insert(peer.row->run);
      }
    }
  }
  std::vector<const ReportRun*> runs;
  for (const ReportRun& run : file.runs) {
    if (shown.count(run.id)) runs.push_back(&run);
  }
  return runs;
}

}  // namespace tandem::tools
