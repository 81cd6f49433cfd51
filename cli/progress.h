// How far long work is, and about how long it takes still: on standard error.
#pragma once

#include <chrono>
#include <string>

namespace tandem::tools {

/// A bar where standard error is a terminal, and elsewhere a line now and then.
class Progress {
 public:
  /// `total`: all the work, in units that each take about the same time.
  explicit Progress(double total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows that `done` of the work is finished, as `count` says it, and `doing` is under way.
  void show(double done, const std::string& count, const std::string& doing);

  /// Makes room for a line of output.
  void clear() const;

 private:
  double total_;
  bool terminal_;
  std::chrono::steady_clock::time_point start_;
  double next_line_ = 0;  // seconds behind the start
};

/// Returns ", about 6 min left"; "" in the first seconds, when an estimate would mean nothing.
std::string time_left(double done, double total, double seconds);

/// Returns the text behind a bar, in one line of a terminal of that width.
std::string progress_bar(double done, double total, const std::string& text, int width);

}  // namespace tandem::tools
