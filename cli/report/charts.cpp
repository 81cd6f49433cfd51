#include "cli/report/charts.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/report/text.h"

namespace tandem::tools {
namespace {

/// Finds Tandem's row of the same case in the run of a peer's row.
const ReportRow* ours_beside(const ReportFile& file, const ReportRow& peer) {
  const ReportRow* found = nullptr;
  for (const ReportRow& row : file.rows) {
    if (row.run == peer.run && row.provider == "tandem" && row.op == peer.op &&
        row.direction == peer.direction && row.case_name == peer.case_name &&
        row.dtype == peer.dtype && row.timed()) {
      found = &row;
    }
  }
  return found;
}

std::string legend_item(const std::string& mark, const std::string& text) {
  return fmt::format("<li><svg viewBox='0 0 22 12'>{}</svg>{}</li>\n", mark, html_escaped(text));
}

}  // namespace

OpCharts::OpCharts(const OpPlace& place, std::optional<double> launch_us)
    : place_(place), launch_us_(launch_us) {
  std::vector<double> times;
  if (launch_us_) times.push_back(*launch_us_);
  for (const OpSection& section : place.sections) {
    for (const std::string& peer : section.peers) {
      if (std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) peers_.push_back(peer);
    }
    for (const CaseLine& line : section.lines) {
      if (line.ours->dtype != section.main_dtype()) continue;
      for (const Contest& contest : contests(line)) {
        times.push_back(*contest.ours->median_us);
        if (contest.ours->floor_us.value_or(0) > 0) times.push_back(*contest.ours->floor_us);
        for (const ReportRow* peer : contest.peers) times.push_back(*peer->median_us);
      }
    }
  }
  if (times.empty()) return;
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  least_us_ = *least;
  most_us_ = *most;
}

std::size_t OpCharts::colour(const ReportRow& row) const {
  return std::find(peers_.begin(), peers_.end(), row.provider) - peers_.begin();
}

std::vector<Contest> OpCharts::contests(const CaseLine& line) const {
  std::vector<Contest> rows;
  for (const PeerCell& peer : line.peers) {
    if (!peer.ratio) continue;
    auto at = std::find_if(rows.begin(), rows.end(),
                           [&](const Contest& one) { return one.ours->run == peer.row->run; });
    if (at == rows.end()) at = rows.insert(at, {ours_beside(*place_.file, *peer.row), {}});
    at->peers.push_back(peer.row);
  }
  const bool latest = std::any_of(rows.begin(), rows.end(), [&](const Contest& one) {
    return one.ours->run == line.ours->run;
  });
  if (!latest && line.ours->timed()) rows.insert(rows.begin(), {line.ours, {}});
  return rows;
}

std::string OpCharts::legend() const {
  std::string html = "<ul class='legend'>\n";
  html += legend_item("<rect class='bar' y='2' width='22' height='8'/>", "tandem");
  html += legend_item("<line class='floor' x1='11' y1='0' x2='11' y2='12'/>", "floor");
  if (launch_us_) {
    html += legend_item("<line class='launch' x1='11' y1='0' x2='11' y2='12'/>",
                        fmt::format("launch, {} us", three_digits(launch_us_)));
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Svg mark(22, 12, "");
    mark.mark(11, 6, i, "");
    const char* what = is_yardstick(place_.sections.front().op, peers_[i])
                           ? ", softmax attention: a yardstick"
                           : "";
    html += legend_item(mark.body(), peers_[i] + what);
  }
  return html + "</ul>\n";
}

LogScale scale_of(const std::vector<double>& values, double open, double from, double to) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {*low / open, *high * open, from, to};
}

std::string tip_of(const ReportRow& row) {
  return fmt::format("{}, {} {}: {} us", row.provider, row.case_name, row.dtype,
                     three_digits(row.median_us));
}

}  // namespace tandem::tools
