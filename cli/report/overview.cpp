#include "cli/report/overview.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report/charts.h"
#include "cli/report/tables.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

constexpr double kWidth = 230, kHeight = 16, kAxis = 18;

struct Dot {
  double value;
  std::string tip;
};

struct OverviewLine {
  const OpSection* section;
  std::vector<Dot> floors, peers;
};

OverviewLine line_of(const OpSection& section) {
  OverviewLine line{&section, {}, {}};
  for (const CaseLine& one : section.lines) {
    const ReportRow& ours = *one.ours;
    if (ours.dtype != section.main_dtype()) continue;
    const std::string name = one.known ? shape_text(one) : ours.case_name;
    if (const auto floor = ratio(ours.median_us, ours.floor_us)) {
      line.floors.push_back({*floor, fmt::format("{}: {:.2f}", name, *floor)});
    }
    if (const PeerCell* peer = one.fastest_peer()) {
      line.peers.push_back(
          {*peer->ratio, fmt::format("{}: {} {:.2f}x", name, peer->row->provider, *peer->ratio)});
    }
  }
  return line;
}

double geometric_mean(const std::vector<Dot>& dots) {
  double sum = 0;
  for (const Dot& dot : dots) sum += std::log(dot.value);
  return std::exp(sum / static_cast<double>(dots.size()));
}

/// Returns a scale that has all dots of a column, and 1.
LogScale scale_of_dots(const std::vector<OverviewLine>& lines,
                       std::vector<Dot> OverviewLine::*column) {
  std::vector<double> values = {1, 2};
  for (const OverviewLine& line : lines) {
    for (const Dot& dot : line.*column) values.push_back(dot.value);
  }
  return scale_of(values, 1.15, 6, kWidth - 6);
}

std::string axis(const LogScale& x) {
  Svg svg(kWidth, kAxis, "");
  for (const double tick : x.decades()) {
    svg.text(x(tick), 12, "tick middle", fmt::format("{:g}", tick));
  }
  return svg.str();
}

/// Renders two cells: the mean, and a dot per case with a bar at the mean.
std::string cells_of(const std::vector<Dot>& dots, const LogScale& x, const std::string& title) {
  if (dots.empty()) return "<td class='number'>-</td><td class='spare'></td>";
  const double mean = geometric_mean(dots);
  Svg svg(kWidth, kHeight, title);
  for (const double tick : x.decades()) {
    svg.line(x(tick), 0, x(tick), kHeight, tick == 1 ? "one" : "grid");
  }
  for (const Dot& dot : dots) svg.circle(x(dot.value), kHeight / 2, 3.5, "dot", dot.tip);
  svg.rect(x(mean) - 1.5, 0, 3, kHeight, "mean", fmt::format("mean {:.2f}", mean));
  return fmt::format("<td class='number'>{:.2f}</td><td class='spare'>{}</td>", mean, svg.str());
}

}  // namespace

std::string section_id(const OpSection& section, const std::string& device) {
  return fmt::format("{}-{}-{}", section.op, section.direction, device);
}

std::string overview_html(const std::vector<OpReport>& ops, const std::string& device) {
  std::vector<OverviewLine> lines;
  for (const OpReport& op : ops) {
    for (const OpPlace& place : op.places) {
      if (place.file->device != device) continue;
      for (const OpSection& section : place.sections) {
        OverviewLine line = line_of(section);
        if (section.is_whole_call() && !line.floors.empty()) lines.push_back(std::move(line));
      }
    }
  }
  if (lines.empty()) return "";
  const LogScale floors = scale_of_dots(lines, &OverviewLine::floors);
  const LogScale peers = scale_of_dots(lines, &OverviewLine::peers);
  std::string html = fmt::format(
      "<div class='wide'><table class='overview'>\n<thead><tr><th>op</th><th>direction</th>"
      "<th class='number spare'>cases</th><th class='number'>time / floor</th><th "
      "class='spare'>{}</th>"
      "<th class='number'>times faster</th><th class='spare'>{}</th></tr></thead>\n<tbody>\n",
      axis(floors), axis(peers));
  for (const OverviewLine& line : lines) {
    const OpSection& section = *line.section;
    const std::string direction = direction_title(section.direction);
    html += fmt::format(
        "<tr><td><a href='#{}'>{}</a></td><td>{}, {}</td><td class='number "
        "spare'>{}</td>{}{}</tr>\n",
        html_escaped(section_id(section, device)), html_escaped(section.op),
        html_escaped(direction), html_escaped(section.main_dtype()), line.floors.size(),
        cells_of(line.floors, floors, "time over floor"),
        cells_of(line.peers, peers, "times faster than the fastest peer"));
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace tandem::tools
