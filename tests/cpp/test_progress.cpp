// What people read while they wait, and behind it: progress in one line, times and rates in units
// that fit.
#include "cli/progress.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/calls/units.h"

namespace tandem::tools {
namespace {

TEST(Progress, EstimatesFromTheWorkDone) {
  EXPECT_EQ(time_left(0, 100, 60), "") << "nothing is known yet";
  EXPECT_EQ(time_left(50, 100, 1), "") << "too early";
  EXPECT_EQ(time_left(25, 100, 10), ", about 30 s left");
  EXPECT_EQ(time_left(10, 100, 30), ", about 5 min left");
  EXPECT_EQ(time_left(1, 100, 120), ", about 3 h 18 min left");
  EXPECT_EQ(time_left(110, 100, 120), ", about 0 s left");
}

TEST(Progress, ABarIsOneLine) {
  EXPECT_EQ(progress_bar(50, 100, "text", 30), "[#####     ] text");
  EXPECT_EQ(progress_bar(0, 0, "text", 30), "[##########] text");
  for (const int width : {0, 1, 20, 60, 200}) {
    const std::string bar = progress_bar(1, 3, std::string(300, 'x'), width);
    EXPECT_LE(bar.size(), static_cast<std::size_t>(std::max(width - 1, 0))) << width;
  }
}

TEST(Units, FitTheSize) {
  EXPECT_EQ(time_text(0.25), "250 ns");
  EXPECT_EQ(time_text(3.7249), "3.72 us");
  EXPECT_EQ(time_text(61533.5), "61.5 ms");
  EXPECT_EQ(time_text(999.4), "999 us");
  EXPECT_EQ(time_text(999.6), "1.00 ms");
  EXPECT_EQ(time_text(9.996), "10.0 us");
  EXPECT_EQ(time_text(2.5e9), "2500 s");
  EXPECT_EQ(rate_text(7.36e14), "736 T");
  EXPECT_EQ(rate_text(1.2e9), "1.20 G");
}

}  // namespace
}  // namespace tandem::tools
