// Bars of time, a case a row, with its peers and its floor.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/report/charts.h"
#include "cli/report/tables.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

constexpr double kWidth = 460, kLeft = 6, kRight = 454, kTop = 20;
constexpr double kStep = 31, kBar = 9, kBarAt = 17;  // of a row: its text is above its bar

std::string result_text(const Contest& contest) {
  const ReportRow& ours = *contest.ours;
  const ReportRow* fastest = nullptr;
  for (const ReportRow* peer : contest.peers) {
    const bool faster = fastest == nullptr || *peer->median_us < *fastest->median_us;
    if (!is_yardstick(peer->op, peer->provider) && faster) fastest = peer;
  }
  std::string text = three_digits(ours.median_us) + " us";
  if (fastest != nullptr) {
    text += fmt::format(", {} {:.2f}x", fastest->provider, *fastest->median_us / *ours.median_us);
  }
  return text;
}

}  // namespace

std::string OpCharts::bars(const OpSection& section) const {
  std::set<const ReportRow*> swept;
  for (const Sweep& sweep : find_sweeps(*place_.file, section)) {
    for (const Sweep::Point& point : sweep.points) swept.insert(point.contest.ours);
  }
  std::map<std::string, int> shapes;
  std::vector<std::pair<const CaseLine*, Contest>> rows;
  for (const CaseLine& line : section.lines) {
    if (line.ours->dtype != section.main_dtype() || swept.count(line.ours)) continue;
    ++shapes[shape_text(line)];
    for (Contest& contest : contests(line)) rows.emplace_back(&line, std::move(contest));
  }
  if (rows.empty()) return "";
  const double bottom = kTop + kStep * static_cast<double>(rows.size());
  const LogScale x = scale_of({least_us_, most_us_}, 1.3, kLeft, kRight);
  Svg svg(kWidth, bottom + 20, section.op + " " + direction_title(section.direction));
  for (const double tick : x.decades()) {
    svg.line(x(tick), kTop, x(tick), bottom, "grid");
    svg.text(x(tick), bottom + 14, "tick middle", fmt::format("{:g}", tick));
  }
  if (launch_us_) svg.line(x(*launch_us_), kTop, x(*launch_us_), bottom, "launch");
  svg.text(kLeft, 12, "title start", "us, " + section.main_dtype());
  double top = kTop;
  for (const auto& [line, contest] : rows) {
    const std::string shape = shape_text(*line);
    std::string label = shapes[shape] == 1 && line->known ? shape : line->ours->case_name;
    if (contest.ours->run != line->ours->run) label += " in " + contest.ours->run;
    svg.text(kLeft, top + 12, "label start", label);
    svg.text(kRight, top + 12, "label end", result_text(contest));
    const double at = top + kBarAt, middle = at + kBar / 2;
    svg.rect(kLeft, at, x(*contest.ours->median_us) - kLeft, kBar, "bar", tip_of(*contest.ours));
    const double floor = contest.ours->floor_us.value_or(0);
    if (floor > 0) svg.line(x(floor), at - 2, x(floor), at + kBar + 2, "floor");
    for (const ReportRow* peer : contest.peers) {
      svg.mark(x(*peer->median_us), middle, colour(*peer), tip_of(*peer));
    }
    top += kStep;
  }
  return svg.str();
}

}  // namespace tandem::tools
