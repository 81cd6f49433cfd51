// The small charts of a case and its peers.
#include <fmt/format.h>

#include <algorithm>

#include "cli/report/charts.h"
#include "cli/report/svg.h"

namespace tandem::tools {
namespace {

constexpr double kWidth = 400, kBar = 15, kStep = 20, kTop = 30;
// Columns where bars begin and end: they begin behind the names, which take so much a letter.
constexpr double kNames = 86, kLetter = 6.6, kEnd = 276;

struct Bar {
  std::string name;
  const ReportRow* row;
  std::optional<double> ratio;
};

std::string text_of(const Bar& bar) {
  if (!bar.row->timed()) return "failed";
  const std::string time = fmt::format("{:.1f} us", *bar.row->median_us);
  return bar.ratio ? fmt::format("{} ({:.2f}x)", time, *bar.ratio) : time;
}

std::string chart(const ReportRow& ours, const std::vector<Bar>& bars) {
  double longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, bar.row->median_us.value_or(0));
  const double floor = ours.floor_us.value_or(0);
  double names = kNames;
  for (const Bar& bar : bars) {
    names = std::max(names, 12 + kLetter * static_cast<double>(bar.name.size()));
  }
  const double pixels = (kEnd - names) / std::max(longest, floor);
  const double bottom = kTop + kStep * static_cast<double>(bars.size());
  Svg svg(kWidth, bottom + 18, ours.case_name + " " + ours.dtype);
  svg.text(4, 14, "case start", ours.case_name + " " + ours.dtype);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (!bars[i].row->timed()) continue;
    svg.rect(names, kTop + kStep * static_cast<double>(i), *bars[i].row->median_us * pixels, kBar,
             i == 0 ? "bar" : "bar peer");
  }
  if (floor > 0) {
    svg.line(names + floor * pixels, kTop - 5, names + floor * pixels, bottom, "floor");
  }
  for (std::size_t i = 0; i < bars.size(); ++i) {  // last: text covers the line
    const double y = kTop + kStep * static_cast<double>(i);
    const double length = bars[i].row->median_us.value_or(0) * pixels;
    svg.text(names - 6, y + 12, "label end", bars[i].name);
    svg.text(names + length + 5, y + 12, "label start", text_of(bars[i]));
  }
  const std::string run = "run " + ours.run;
  svg.text(names, bottom + 12, "note start",
           floor > 0 ? fmt::format("dashed: floor {:.1f} us; {}", floor, run) : run);
  return svg.str();
}

/// Finds Tandem's row of the same case in another run.
const ReportRow* ours_in(const ReportFile& file, const ReportRow& peer) {
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

}  // namespace

std::string peer_charts(const ReportFile& file, const OpSection& section) {
  std::string charts;
  for (const CaseLine& line : section.lines) {
    // Draws one chart per run that some of the peers are of: mostly there is one.
    std::vector<std::string> runs;
    for (const PeerCell& peer : line.peers) {
      if (!peer.ratio || std::find(runs.begin(), runs.end(), peer.row->run) != runs.end()) continue;
      runs.push_back(peer.row->run);
    }
    for (const std::string& run : runs) {
      std::vector<Bar> bars;
      for (std::size_t i = 0; i < line.peers.size(); ++i) {
        const PeerCell& peer = line.peers[i];
        if (peer.row == nullptr || peer.row->run != run) continue;
        if (bars.empty()) bars.push_back({"tandem", ours_in(file, *peer.row), std::nullopt});
        bars.push_back({section.peers[i], peer.row, peer.ratio});
      }
      if (bars[0].row != nullptr) charts += chart(*bars[0].row, bars);
    }
  }
  return charts;
}

}  // namespace tandem::tools
