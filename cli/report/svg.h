// Inline SVG: shapes by CSS class (report_style.h), logarithmic axes, a column of labels.
#pragma once

#include <string>
#include <vector>

namespace tandem::tools {

/// Escapes &, <, > and quotes as entities.
std::string html_escaped(const std::string& text);

class Svg {
 public:
  Svg(double width, double height, std::string title)
      : width_(width), height_(height), title_(std::move(title)) {}

  void line(double x1, double y1, double x2, double y2, const char* css);
  void polyline(const std::vector<std::pair<double, double>>& points, const char* css);
  /// Draws a mark; `tip` appears under the pointer; "" for none.
  void circle(double x, double y, double radius, const char* css, const std::string& tip);
  void rect(double x, double y, double width, double height, const char* css);
  /// Draws text; `css` also says where it is anchored: start, middle or end.
  void text(double x, double y, const char* css, const std::string& text);
  std::string str() const;

 private:
  double width_, height_;
  std::string title_, body_;
};

/// Maps values of a range to pixels, on a logarithmic scale.
struct LogScale {
  double low = 1, high = 10, from = 0, to = 1;

  double operator()(double value) const;
  /// Ticks inside the range: powers of two, at most some ten; or 1, 2, 5 times powers of ten.
  std::vector<double> powers_of_two() const;
  std::vector<double> decades() const;
};

/// Draws the frame, grid and ticks of a chart with these scales.
void draw_axes(Svg& svg, const LogScale& x, const LogScale& y, const std::vector<double>& x_ticks,
               const std::vector<double>& y_ticks, const std::string& x_title,
               const std::string& y_title);

struct PointLabel {
  double x, y;  // of the point
  std::string text;
};

/// Draws labels one under another at `column`, each level with its point where there is room, with
/// a thin line to it.
void draw_label_column(Svg& svg, std::vector<PointLabel> labels, double column, double top,
                       double bottom);

}  // namespace tandem::tools
