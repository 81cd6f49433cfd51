#include "cli/report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/report/svg.h"
#include "cli/report/tables.h"

namespace tandem::tools {
namespace {

constexpr double kWidth = 1040, kHeight = 420;
constexpr double kLeft = 60, kRight = 800, kTop = 34, kBottom = 370;
constexpr double kLabels = 840;

std::string tip_of(const ReportRow& row) {
  return fmt::format("{} {}: {:.1f} us", row.case_name, row.dtype, *row.median_us);
}

/// Returns the least and the greatest value, opened by a factor so that no point lies on the frame.
LogScale scale_of(const std::vector<double>& values, double open, double from, double to) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {*low / open, *high * open, from, to};
}

struct Rate {
  const ReportRow* row;
  double intensity, tflops;
};

std::string first_dtype(const OpSection& section) { return section.lines[0].ours->dtype; }

/// Draws "● bf16  ○ fp16, fp32" at the top of a chart.
void draw_dtypes(Svg& svg, const OpSection& section, const std::vector<const ReportRow*>& rows) {
  std::vector<std::string> others;
  for (const ReportRow* row : rows) {
    const bool known = std::find(others.begin(), others.end(), row->dtype) != others.end();
    if (row->dtype != first_dtype(section) && !known) others.push_back(row->dtype);
  }
  svg.circle(kLabels, 14, 3.5, "point", "");
  svg.text(kLabels + 9, 18, "label start", first_dtype(section));
  if (others.empty()) return;
  svg.circle(kLabels + 54, 14, 6.5, "point other", "");
  svg.text(kLabels + 66, 18, "label start", fmt::format("{}", fmt::join(others, ", ")));
}

}  // namespace

std::vector<std::string> runs_of(const OpSection& section) {
  std::vector<std::string> runs;
  for (const CaseLine& line : section.lines) {
    const bool known = std::find(runs.begin(), runs.end(), line.ours->run) != runs.end();
    if (line.ours->timed() && !known) runs.push_back(line.ours->run);
  }
  return runs;
}

std::string roofline_chart(const ReportFile& file, const OpSection& section,
                           const std::string& run) {
  const double copy = file.ceiling(run, "copy_tbps"), matrix = file.ceiling(run, "bf16_tflops");
  std::vector<Rate> rates;
  std::vector<const ReportRow*> rows;
  for (const CaseLine& line : section.lines) {
    const ReportRow& row = *line.ours;
    if (row.run != run || !row.timed() || row.flops.value_or(0) <= 0 ||
        row.bytes.value_or(0) <= 0) {
      continue;
    }
    rates.push_back({&row, *row.flops / *row.bytes, *row.flops / *row.median_us * 1e-6});
    rows.push_back(&row);
  }
  if (rates.empty() || copy <= 0 || matrix <= 0) return "";
  const double ridge = matrix / copy;
  std::vector<double> xs = {ridge}, ys = {matrix};
  for (const Rate& rate : rates) {
    xs.push_back(rate.intensity);
    ys.push_back(rate.tflops);
  }
  const LogScale x = scale_of(xs, 2, kLeft, kRight);
  const LogScale y = scale_of(ys, 1.6, kBottom, kTop);
  Svg svg(kWidth, kHeight, "Roofline of " + section.op);
  draw_axes(svg, x, y, x.powers_of_two(), y.decades(), "flops per byte (fewest bytes)", "TFLOP/s");
  const double enters = std::max(x.low, y.low / copy);  // where the copy ceiling meets the frame
  svg.polyline({{x(enters), y(enters * copy)}, {x(ridge), y(matrix)}, {x(x.high), y(matrix)}},
               "roof");
  svg.text(x(x.high) - 4, y(matrix) - 7, "note end",
           fmt::format("matrix products {:.0f} TFLOP/s", matrix));
  svg.text(x(std::sqrt(enters * ridge)) - 8, y(std::sqrt(enters * ridge) * copy) - 6, "note end",
           fmt::format("copy {:.2f} TB/s", copy));
  std::vector<PointLabel> labels;
  for (const Rate& rate : rates) {
    if (rate.row->dtype != first_dtype(section)) continue;
    labels.push_back({x(rate.intensity), y(rate.tflops), rate.row->case_name});
  }
  draw_label_column(svg, labels, kLabels, kTop, kBottom);
  for (const bool first : {false, true}) {  // rings of the other dtypes below
    for (const Rate& rate : rates) {
      if ((rate.row->dtype == first_dtype(section)) != first) continue;
      svg.circle(x(rate.intensity), y(rate.tflops), first ? 3.5 : 6.5,
                 first ? "point" : "point other",
                 fmt::format("{}, {:.1f} TFLOP/s", tip_of(*rate.row), rate.tflops));
    }
  }
  draw_dtypes(svg, section, rows);
  return svg.str();
}

std::string length_chart(const OpSection& section, const std::string& run) {
  std::map<std::string, Case> table;
  for (Case& one : known_cases(section.op)) table.emplace(one.name, std::move(one));
  struct Point {
    double length;
    const ReportRow* row;
  };
  std::map<std::string, std::vector<Point>> series;
  std::vector<double> lengths, times;
  for (const CaseLine& line : section.lines) {
    const ReportRow& row = *line.ours;
    const auto one = table.find(row.case_name);
    if (row.run != run || !row.timed() || row.dtype != first_dtype(section) || one == table.end() ||
        !one->second.axes.count("T") || one->second.axis("T") < 1) {
      continue;
    }
    const std::string rest = shape_text(one->second, "T");
    const double T = static_cast<double>(one->second.axis("T"));
    series[rest].push_back({T, &row});
    lengths.push_back(T);
    times.push_back(*row.median_us);
    if (row.floor_us.value_or(0) > 0) times.push_back(*row.floor_us);
  }
  if (std::set<double>(lengths.begin(), lengths.end()).size() < 2) return "";
  const LogScale x = scale_of(lengths, 1.2, kLeft, kRight);
  const LogScale y = scale_of(times, 1.3, kBottom, kTop);
  Svg svg(kWidth, kHeight, "Time of " + section.op + " against T");
  draw_axes(svg, x, y, x.powers_of_two(), y.decades(), "T (tokens)",
            "us, " + first_dtype(section) + "; small: floor");
  std::vector<PointLabel> labels;
  for (auto& [name, points] : series) {
    std::sort(points.begin(), points.end(),
              [](const Point& a, const Point& b) { return a.length < b.length; });
    std::vector<std::pair<double, double>> path;
    for (const Point& point : points) {
      path.emplace_back(x(point.length), y(*point.row->median_us));
      if (point.row->floor_us.value_or(0) > 0) {
        const double floor = y(*point.row->floor_us);
        svg.line(path.back().first, path.back().second, path.back().first, floor, "leader");
        svg.circle(path.back().first, floor, 2, "floor-point", "");
      }
    }
    svg.polyline(path, "series");
    labels.push_back({path.back().first, path.back().second, name});
  }
  draw_label_column(svg, labels, kLabels, kTop, kBottom);
  for (const auto& [name, points] : series) {
    for (const Point& point : points) {
      svg.circle(x(point.length), y(*point.row->median_us), 4, "point", tip_of(*point.row));
    }
  }
  return svg.str();
}

}  // namespace tandem::tools
