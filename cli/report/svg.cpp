#include "cli/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace tandem::tools {
namespace {

std::string title_element(const std::string& tip) {
  return tip.empty() ? "" : "<title>" + html_escaped(tip) + "</title>";
}

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      default: safe += c;
    }
  }
  return safe;
}

void Svg::line(double x1, double y1, double x2, double y2, const char* css) {
  body_ += fmt::format("<line class='{}' x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}'/>\n", css,
                       x1, y1, x2, y2);
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points, const char* css) {
  body_ += fmt::format("<polyline class='{}' points='", css);
  for (const auto& [x, y] : points) body_ += fmt::format("{:.1f},{:.1f} ", x, y);
  body_ += "'/>\n";
}

void Svg::circle(double x, double y, double radius, const char* css, const std::string& tip) {
  body_ += fmt::format("<circle class='{}' cx='{:.1f}' cy='{:.1f}' r='{:.1f}'>{}</circle>\n", css,
                       x, y, radius, title_element(tip));
}

void Svg::rect(double x, double y, double width, double height, const char* css,
               const std::string& tip) {
  body_ += fmt::format(
      "<rect class='{}' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'>{}</rect>\n", css, x,
      y, width, height, title_element(tip));
}

void Svg::mark(double x, double y, std::size_t kind, const std::string& tip) {
  // Circle, square, diamond and triangle of about the same area, around 0.
  constexpr const char* kShapes[] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.5-3.5h7v7h-7z",
                                     "M0-5l5 5-5 5-5-5z", "M0-5l5 8.5h-10z"};
  body_ += fmt::format(
      "<path class='mark p{}' transform='translate({:.1f} {:.1f})' d='{}'>{}</path>\n",
      kind % kPeerColours, x, y, kShapes[kind % std::size(kShapes)], title_element(tip));
}

void Svg::text(double x, double y, const char* css, const std::string& text) {
  body_ += fmt::format("<text class='{}' x='{:.1f}' y='{:.1f}'>{}</text>\n", css, x, y,
                       html_escaped(text));
}

std::string Svg::str() const {
  return fmt::format("<svg viewBox='0 0 {:.0f} {:.0f}' role='img' aria-label='{}'>\n{}</svg>\n",
                     width_, height_, html_escaped(title_), body_);
}

double LogScale::operator()(double value) const {
  return from + (to - from) * std::log(value / low) / std::log(high / low);
}

std::vector<double> LogScale::powers_of_two(int most) const {
  const int first = static_cast<int>(std::ceil(std::log2(low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log2(high) + 1e-9));
  const int step = std::max(1, (last - first + most - 1) / most);
  std::vector<double> ticks;
  for (int i = first; i <= last; i += step) ticks.push_back(std::exp2(i));
  return ticks;
}

std::vector<double> LogScale::decades() const {
  std::vector<double> ticks;
  const bool wide = high / low > 2e3;
  for (int i = static_cast<int>(std::floor(std::log10(low))); std::pow(10, i) <= high; ++i) {
    for (const double times : {1.0, 2.0, 5.0}) {
      const double tick = times * std::pow(10, i);
      if (tick >= low * 0.999 && tick <= high * 1.001 && (times == 1 || !wide)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

void draw_axes(Svg& svg, const LogScale& x, const LogScale& y, const std::vector<double>& x_ticks,
               const std::vector<double>& y_ticks, const std::string& x_title,
               const std::string& y_title) {
  for (const double tick : x_ticks) {
    svg.line(x(tick), y.from, x(tick), y.to, "grid");
    svg.text(x(tick), y.from + 16, "tick middle", fmt::format("{:g}", tick));
  }
  for (const double tick : y_ticks) {
    svg.line(x.from, y(tick), x.to, y(tick), "grid");
    svg.text(x.from - 6, y(tick) + 4, "tick end", fmt::format("{:g}", tick));
  }
  svg.line(x.from, y.from, x.to, y.from, "axis");
  svg.line(x.from, y.from, x.from, y.to, "axis");
  svg.text((x.from + x.to) / 2, y.from + 36, "title middle", x_title);
  svg.text(x.from - 44, y.to - 12, "title start", y_title);
}

}  // namespace tandem::tools
