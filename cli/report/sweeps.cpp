// Time against the number of tokens, of cases that differ in nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/report/charts.h"
#include "cli/report/tables.h"

namespace tandem::tools {
namespace {

constexpr std::size_t kFewest = 4;
constexpr double kWidth = 300, kHeight = 226, kLeft = 44, kRight = 292, kTop = 40, kBottom = 184;

/// Returns the axis of tokens; "" for a case without one, and for a packed one, whose T is no
/// length.
std::string token_axis(const Case& one) {
  for (const char* letter : {"T", "M"}) {
    if (one.axes.count(letter) != 0 && one.axis(letter) > 0 && !one.cu_seqlens) return letter;
  }
  return "";
}

/// Returns what the cases of a sweep have in common.
Case without_tokens(Case one) {
  one.axes.erase(token_axis(one));
  one.name.clear();
  one.directions.clear();
  one.dtypes.clear();
  one.tags.clear();
  one.seed = 0;
  return one;
}

/// Collects the points of one run, by tokens.
std::vector<Sweep::Point> points_of(const ReportFile& file, const OpSection& section,
                                    const std::map<std::string, double>& tokens,
                                    const std::string& dtype, const std::string& run) {
  std::map<double, Contest> by_tokens;
  for (const bool ours : {true, false}) {  // a peer's row may come first
    for (const ReportRow& row : file.rows) {
      const auto at = tokens.find(row.case_name);
      if (row.run != run || row.op != section.op || row.direction != section.direction ||
          row.dtype != dtype || !row.timed() || at == tokens.end() ||
          (row.provider == "tandem") != ours) {
        continue;
      }
      if (ours) {
        by_tokens[at->second] = {&row, {}};
      } else if (const auto point = by_tokens.find(at->second); point != by_tokens.end()) {
        point->second.peers.push_back(&row);
      }
    }
  }
  std::vector<Sweep::Point> points;
  for (auto& [length, contest] : by_tokens) points.push_back({length, std::move(contest)});
  return points;
}

}  // namespace

std::vector<Sweep> find_sweeps(const ReportFile& file, const OpSection& section) {
  struct Group {
    Case common;
    std::string axis, shape, dtype;
    std::map<std::string, double> tokens;  // by name of the case
  };
  std::vector<Group> groups;
  for (const CaseLine& line : section.lines) {
    const std::string axis = line.known ? token_axis(*line.known) : "";
    if (axis.empty()) continue;
    const Case common = without_tokens(*line.known);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& one) {
      return one.dtype == line.ours->dtype && one.common == common;
    });
    if (group == groups.end()) {
      const std::string shape = shape_text(*line.known, axis);
      group = groups.insert(group, {common, axis, shape, line.ours->dtype, {}});
    }
    group->tokens[line.ours->case_name] = static_cast<double>(line.known->axis(axis));
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.common.axes < b.common.axes; });
  std::vector<Sweep> sweeps;
  for (const Group& group : groups) {
    if (group.tokens.size() < kFewest) continue;
    Sweep sweep{group.axis, fmt::format("{} {}", group.shape, group.dtype), {}};
    for (const ReportRun& run : file.runs) {  // oldest first
      auto points = points_of(file, section, group.tokens, group.dtype, run.id);
      if (points.size() >= sweep.points.size()) sweep.points = std::move(points);
    }
    if (sweep.points.size() >= kFewest) sweeps.push_back(std::move(sweep));
  }
  return sweeps;
}

std::string OpCharts::sweeps(const OpSection& section) const {
  std::string charts;
  for (const Sweep& sweep : find_sweeps(*place_.file, section)) {
    using Path = std::vector<std::pair<double, double>>;
    Path ours, floor;
    std::map<std::size_t, Path> peers;  // by colour
    std::vector<double> lengths, times;
    for (const auto& [tokens, contest] : sweep.points) {
      const auto add = [&, at = tokens](Path& path, double us) {
        path.emplace_back(at, us);
        times.push_back(us);
      };
      lengths.push_back(tokens);
      add(ours, *contest.ours->median_us);
      if (contest.ours->floor_us.value_or(0) > 0) add(floor, *contest.ours->floor_us);
      for (const ReportRow* peer : contest.peers) add(peers[colour(*peer)], *peer->median_us);
    }
    const LogScale x = scale_of(lengths, 1.2, kLeft, kRight);
    const LogScale y = scale_of(times, 1.3, kBottom, kTop);
    const auto draw = [&](Svg& svg, const Path& path, const std::string& css) {
      Path pixels;
      for (const auto& [tokens, us] : path) pixels.emplace_back(x(tokens), y(us));
      svg.polyline(pixels, css.c_str());
    };
    Svg svg(kWidth, kHeight, "Time against " + sweep.axis + ", " + sweep.title);
    svg.text(kLeft, 13, "case start", sweep.title);
    svg.text(kRight, 30, "note end", "run " + sweep.points[0].contest.ours->run);
    draw_axes(svg, x, y, x.powers_of_two(5), y.decades(), sweep.axis + " (tokens)", "us");
    if (launch_us_ && y.low < *launch_us_ && *launch_us_ < y.high) {
      svg.line(kLeft, y(*launch_us_), kRight, y(*launch_us_), "launch");
    }
    draw(svg, floor, "floor");
    for (const auto& [colour, path] : peers)
      draw(svg, path, fmt::format("line p{}", colour % kPeerColours));
    draw(svg, ours, "series");
    for (const auto& [tokens, contest] : sweep.points) {
      for (const ReportRow* peer : contest.peers) {
        svg.mark(x(tokens), y(*peer->median_us), colour(*peer), tip_of(*peer));
      }
      svg.circle(x(tokens), y(*contest.ours->median_us), 4, "point", tip_of(*contest.ours));
    }
    charts += svg.str();
  }
  return charts;
}

}  // namespace tandem::tools
