// The charts of an op on one device. Whatever is read off a row or a chart was formed within one
// run; "" where there is nothing to show.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/report/data.h"
#include "cli/report/svg.h"

namespace tandem::tools {

/// A row of a case in the run that its times are of: Tandem's and its peers'.
struct Contest {
  const ReportRow* ours;
  std::vector<const ReportRow*> peers;
};

/// Cases that differ in their number of tokens only, timed in one run.
struct Sweep {
  struct Point {
    double tokens;
    Contest contest;
  };
  std::string axis;           // "T" or "M"
  std::string title;          // "B4 D64 fp16"
  std::vector<Point> points;  // by tokens
};

class OpCharts {
 public:
  /// `place` outlives the charts.
  OpCharts(const OpPlace& place, std::optional<double> launch_us);

  /// Says what marks and colours mean, the same in all charts.
  std::string legend() const;
  /// Draws a bar per case of the section's main dtype, with marks of its peers, on the time scale
  /// that all sections share. Cases that are a point of a sweep are left out.
  std::string bars(const OpSection& section) const;
  /// Draws matrix rate against flops per byte under the ceilings of all runs that have a point.
  std::string roofline() const;
  /// Draws time against tokens, a small chart per sweep.
  std::string sweeps(const OpSection& section) const;

 private:
  std::size_t colour(const ReportRow& row) const;
  std::vector<Contest> contests(const CaseLine& line) const;

  const OpPlace& place_;
  std::optional<double> launch_us_;
  std::vector<std::string> peers_;  // in the order of their colours
  double least_us_ = 0, most_us_ = 0;
};

/// Finds the sweeps of a section, of at least four sizes; of each, the latest of the runs that
/// timed most of them.
std::vector<Sweep> find_sweeps(const ReportFile& file, const OpSection& section);

/// Returns the least and the greatest value, opened by a factor so that no point lies on the frame.
LogScale scale_of(const std::vector<double>& values, double open, double from, double to);

/// Returns "name case dtype: 12.3 us", what is shown of a mark under the pointer.
std::string tip_of(const ReportRow& row);

}  // namespace tandem::tools
