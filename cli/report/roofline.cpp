// Matrix rate against flops per byte.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report/charts.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

constexpr double kWidth = 460, kHeight = 300, kLeft = 46, kRight = 450, kTop = 26, kBottom = 258;

struct Point {
  double intensity, tflops;
  const ReportRow* row;
};

/// The least and the greatest of a ceiling in the runs that have a point.
struct Range {
  double low = 0, high = 0;

  void add(double value) {
    low = high == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  }
  std::string text(const char* unit) const {
    const std::string from = three_digits(low), to = three_digits(high);
    return from == to ? fmt::format("{} {}", to, unit) : fmt::format("{} to {} {}", from, to, unit);
  }
};

}  // namespace

std::string OpCharts::roofline() const {
  std::vector<Point> points;
  Range copies, matrices;
  for (const OpSection& section : place_.sections) {
    if (!section.is_whole_call()) continue;
    for (const CaseLine& line : section.lines) {
      if (line.ours->dtype != section.main_dtype()) continue;
      for (const Contest& contest : contests(line)) {
        const ReportRow& ours = *contest.ours;
        const double copy = place_.file->ceiling(ours.run, "copy_tbps");
        const double matrix = place_.file->ceiling(ours.run, "bf16_tflops");
        const bool has_rate = ours.flops.value_or(0) > 0 && ours.bytes.value_or(0) > 0;
        if (!has_rate || copy <= 0 || matrix <= 0) continue;
        copies.add(copy);
        matrices.add(matrix);
        // why Tandem's flops: those that the function takes, whatever a peer does beside.
        const auto add = [&](const ReportRow& row) {
          points.push_back({*ours.flops / *ours.bytes, *ours.flops / *row.median_us * 1e-6, &row});
        };
        for (const ReportRow* peer : contest.peers) add(*peer);
        add(ours);
      }
    }
  }
  if (points.empty()) return "";
  std::vector<double> xs = {matrices.low / copies.high, matrices.high / copies.low};
  std::vector<double> ys = {matrices.high};
  for (const Point& point : points) {
    xs.push_back(point.intensity);
    ys.push_back(point.tflops);
  }
  const LogScale x = scale_of(xs, 2, kLeft, kRight), y = scale_of(ys, 1.6, kBottom, kTop);
  Svg svg(kWidth, kHeight, "Roofline of " + place_.sections[0].op);
  draw_axes(svg, x, y, x.powers_of_two(10), y.decades(), "flops per byte (fewest bytes)",
            "TFLOP/s");
  const auto enters = [&](double copy) { return std::max(x.low, y.low / copy); };
  for (const auto& [copy, matrix] :
       {std::pair(copies.low, matrices.low), std::pair(copies.high, matrices.high)}) {
    const double ridge = matrix / copy, from = enters(copy);
    svg.polyline({{x(from), y(from * copy)}, {x(ridge), y(matrix)}, {x(x.high), y(matrix)}},
                 "roof");
  }
  svg.text(kRight - 4, y(matrices.high) - 7, "note end",
           "matrix products, " + matrices.text("TFLOP/s"));
  const double along = std::sqrt(enters(copies.high) * xs[0]);
  const bool room = x(along) - kLeft > 150;  // left of the ceiling; else right of it, below
  svg.text(x(along) + (room ? -10 : 14), y(along * copies.high) + (room ? -6 : 12),
           room ? "note end" : "note start", "copy, " + copies.text("TB/s"));
  for (const Point& point : points) {
    const std::string tip = fmt::format("{} {}, {} TFLOP/s", point.row->direction,
                                        tip_of(*point.row), three_digits(point.tflops));
    if (point.row->provider == "tandem") {
      svg.circle(x(point.intensity), y(point.tflops), 4, "point", tip);
    } else {
      svg.mark(x(point.intensity), y(point.tflops), colour(*point.row), tip);
    }
  }
  return svg.str();
}

}  // namespace tandem::tools
