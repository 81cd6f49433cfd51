// A progress bar on standard error, only where that is a terminal.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace tandem::tools {

class Progress {
 public:
  explicit Progress(std::size_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows that `done` steps are finished and `doing` is under way.
  void show(std::size_t done, const std::string& doing) {
    if (!shown_ || total_ == 0) return;
    constexpr std::size_t kWidth = 30;
    const std::size_t filled = kWidth * done / total_;
    fmt::print(stderr, "\r\x1b[K[{:<{}}] {}/{} {}", std::string(filled, '#'), kWidth, done, total_,
               doing);
    std::fflush(stderr);
  }

  /// Makes room for a line of output.
  void clear() {
    if (!shown_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }

 private:
  std::size_t total_;
  bool shown_;
};

}  // namespace tandem::tools
