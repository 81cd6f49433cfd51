// Inline SVG: shapes by CSS class (style.h), and logarithmic axes.
#pragma once

#include <string>
#include <vector>

namespace tandem::tools {

/// Escapes &, <, > and quotes as entities.
std::string html_escaped(const std::string& text);

constexpr std::size_t kPeerColours = 8;

class Svg {
 public:
  Svg(double width, double height, std::string title)
      : width_(width), height_(height), title_(std::move(title)) {}

  void line(double x1, double y1, double x2, double y2, const char* css);
  void polyline(const std::vector<std::pair<double, double>>& points, const char* css);
  /// Draws a mark; `tip` appears under the pointer; "" for none.
  void circle(double x, double y, double radius, const char* css, const std::string& tip);
  void rect(double x, double y, double width, double height, const char* css,
            const std::string& tip);
  /// Draws the mark of the `kind`th peer: its colour is class p<kind>, its shape one of four.
  void mark(double x, double y, std::size_t kind, const std::string& tip);
  /// Draws text; `css` also says where it is anchored: start, middle or end.
  void text(double x, double y, const char* css, const std::string& text);
  std::string str() const;
  /// Returns what was drawn, without the element around it.
  const std::string& body() const { return body_; }

 private:
  double width_, height_;
  std::string title_, body_;
};

/// Maps values of a range to pixels, on a logarithmic scale.
struct LogScale {
  double low = 1, high = 10, from = 0, to = 1;

  double operator()(double value) const;
  /// Ticks inside the range: powers of two, at most `most` and one; or 1, 2, 5 times powers of ten.
  std::vector<double> powers_of_two(int most) const;
  std::vector<double> decades() const;
};

/// Draws the frame, grid and ticks of a chart with these scales.
void draw_axes(Svg& svg, const LogScale& x, const LogScale& y, const std::vector<double>& x_ticks,
               const std::vector<double>& y_ticks, const std::string& x_title,
               const std::string& y_title);

}  // namespace tandem::tools
