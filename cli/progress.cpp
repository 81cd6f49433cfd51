#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tandem::tools {
namespace {

constexpr double kFirstLine = 3;      // seconds
constexpr double kBetweenLines = 10;  // at least; later a tenth of the time so far

int terminal_width() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

/// Returns "35 s", "6 min", "2 h 10 min".
std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.0f} s", std::ceil(seconds));
  const auto minutes = static_cast<long>(std::ceil(seconds / 60));
  if (minutes < 60) return fmt::format("{} min", minutes);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace

std::string time_left(double done, double total, double seconds) {
  if (done <= 0 || seconds < kFirstLine) return "";
  return fmt::format(", about {} left",
                     duration_text(std::max(0.0, seconds * (total - done) / done)));
}

std::string progress_bar(double done, double total, const std::string& text, int width) {
  const auto cells = static_cast<std::size_t>(std::clamp(width / 3, 0, 30));
  const double part = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 1;
  const std::string filled(static_cast<std::size_t>(part * static_cast<double>(cells)), '#');
  // why not the whole width: some terminals go on to the next line behind the last column.
  const std::size_t most = width > 0 ? static_cast<std::size_t>(width) - 1 : 0;
  return fmt::format("[{:<{}}] {}", filled, cells, text).substr(0, most);
}

Progress::Progress(double total)
    : total_(total),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      next_line_(kFirstLine) {}

void Progress::show(double done, const std::string& count, const std::string& doing) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::string text = count + time_left(done, total_, seconds) + ": " + doing;
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", progress_bar(done, total_, text, terminal_width()));
  } else if (seconds >= next_line_) {
    fmt::print(stderr, "{}\n", text);
    next_line_ = seconds + std::max(kBetweenLines, seconds / 10);
  }
  std::fflush(stderr);
}

void Progress::clear() const {
  if (!terminal_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace tandem::tools
