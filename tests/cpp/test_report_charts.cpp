// The HTML report's overview and charts: which rows they show, and what stays within a run.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "cli/report/charts.h"
#include "cli/report/html.h"
#include "cli/report/overview.h"
#include "report_fixture.h"

namespace tandem::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const OpPlace& place_of(const std::vector<OpReport>& ops) { return ops.at(0).places.at(0); }

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

Json of_op(Json json, const std::string& op, const std::string& direction = "forward") {
  json["op"] = op;
  json["direction"] = direction;
  return json;
}

/// A row of the scans' sweep over T.
Json swept(const std::string& run, const std::string& provider, int length, double us) {
  return of_op(row(run, provider, us, fmt::format("sweep_b4_t{}", length), "fp16"), "gated_scan");
}

TEST_F(Report, OverviewHasGeometricMeansOfTheMainDtype) {
  const Json rows = {row(kNew, "tandem", 20),
                     row(kNew, "fla", 40),
                     row(kNew, "mamba2", 30),
                     row(kNew, "sdpa_flash", 21),  // a yardstick
                     row(kNew, "tandem", 80, "b4h32_t4096_d64"),
                     row(kNew, "fla", 480, "b4h32_t4096_d64"),
                     row(kNew, "tandem", 1, "b4h32_t1024_d64", "fp16"),
                     of_op(row(kNew, "tandem", 1), "gla", "backward")};
  const auto loaded = files(rows);
  const std::string text = overview_html(select_ops(loaded), "gpu");
  EXPECT_THAT(text, HasSubstr("<a href='#gla-forward-gpu'>gla</a></td><td>forward, bf16</td>"));
  EXPECT_THAT(text, HasSubstr(fmt::format(">{:.2f}<", std::sqrt(20 * 80) / 15.73)));
  EXPECT_THAT(text, HasSubstr(">3.00<")) << "of 1.5 and 6";
  EXPECT_THAT(text, HasSubstr("<title>B4 H32 T1024 D64: mamba2 1.50x</title>"));
  EXPECT_EQ(count_of(text, "<tr><td>"), 1) << "backward alone is a part of a call";
  EXPECT_EQ(overview_html(select_ops(loaded), "another"), "");
}

TEST_F(Report, OpsComeInTheOrderOfTheirSchemasThenOthers) {
  const Json rows = {of_op(row(kNew, "tandem", 20), "another"),
                     of_op(row(kNew, "tandem", 20), "gated_scan"),
                     of_op(row(kNew, "tandem", 20), "gla", "backward"),
                     of_op(row(kNew, "tandem", 20), "gla", "step"),
                     of_op(row(kNew, "tandem", 20), "gla", "forward_backward"),
                     row(kNew, "tandem", 20)};
  const auto loaded = files(rows);
  std::vector<std::string> names, directions;
  const auto ops = select_ops(loaded);
  for (const OpReport& op : ops) names.push_back(op.op);
  EXPECT_THAT(names, ElementsAre("gla", "gated_scan", "another"));
  for (const OpSection& section : place_of(ops).sections) {
    directions.push_back(section.direction);
  }
  EXPECT_THAT(directions, ElementsAre("forward", "forward_backward", "step", "backward"));
}

TEST_F(Report, TheDeviceWithMostRowsComesFirst) {
  Json rows = {row(kNew, "tandem", 20)};
  files(rows);
  fs::rename(folder_ / "gpu", folder_ / "a_gpu");
  rows.push_back(row(kNew, "fla", 40));
  const auto both = files(rows);
  const auto ops = select_ops(both);
  ASSERT_EQ(ops.at(0).places.size(), 2u);
  EXPECT_EQ(place_of(ops).file->device, "gpu");
  EXPECT_THAT(html_report(both, {}), HasSubstr("<summary>On a_gpu</summary>"));
}

TEST_F(Report, BarsOfAPeersRunAreOfThatRun) {
  const auto loaded = files(many_rows());
  const auto ops = select_ops(loaded);
  const OpCharts charts(place_of(ops), std::nullopt);
  const std::string bars = charts.bars(place_of(ops).sections[0]);
  EXPECT_THAT(bars, HasSubstr("tandem, b4h32_t4096_d64 bf16: 85.4 us"));
  EXPECT_THAT(bars, HasSubstr("tandem, b4h32_t4096_d64 bf16: 90.1 us"));
  EXPECT_THAT(bars, HasSubstr(">B4 H32 T4096 D64 in 20260101-1<"));
  EXPECT_EQ(count_of(bars, "<rect class='bar'"), 4);
  EXPECT_EQ(count_of(bars, "class='mark"), 3) << "no mark of what failed";
  EXPECT_EQ(count_of(bars, "class='floor'"), 4);
  EXPECT_THAT(bars, Not(HasSubstr("fp16")));
  const std::string legend = charts.legend();
  for (const char* peer : {"</svg>fla<", "</svg>mamba2<", "</svg>tfla<", "</svg>unfused<"}) {
    EXPECT_THAT(legend, HasSubstr(peer));
  }
}

TEST_F(Report, CasesOfOneShapeAreBarsByName) {
  const auto loaded = files({row(kNew, "tandem", 700, "varlen_mixed_h16_d128"),
                             row(kNew, "tandem", 800, "varlen_equal_h16_d128"),
                             row(kNew, "tandem", 20), row(kNew, "tandem", 30, "unknown")});
  const auto ops = select_ops(loaded);
  const std::string bars = OpCharts(place_of(ops), {}).bars(place_of(ops).sections[0]);
  for (const char* label :
       {">varlen_mixed_h16_d128<", ">varlen_equal_h16_d128<", ">B4 H32 T1024 D64<", ">unknown<"}) {
    EXPECT_THAT(bars, HasSubstr(label));
  }
}

TEST_F(Report, TheLaunchIsTheShortestCallThatTheFloorSaysLittleOf) {
  Json near_floor = row(kNew, "tandem", 2);
  near_floor["floor_us"] = 1.5;
  Json launch = row(kNew, "tandem", 3.32, "b4h32_t4096_d64");
  launch["floor_us"] = 0.5;
  Json longer = row(kNew, "unfused", 4.1, "b4h32_t4096_d64");
  longer["floor_us"] = 0.5;
  const auto loaded = files({near_floor, longer, launch});
  EXPECT_EQ(launch_us(loaded, "gpu"), 3.32);
  EXPECT_FALSE(launch_us(loaded, "another"));
  EXPECT_FALSE(launch_us(files(many_rows()), "gpu")) << "no call of many_rows() is short";
  EXPECT_THAT(html_report(loaded, {}), HasSubstr("</svg>launch, 3.32 us<"));
}

TEST_F(Report, ASweepHasFourSizesThatDifferInTokensOnly) {
  Json rows = Json::array();
  for (const int length : {512, 1024, 2048}) rows.push_back(swept(kNew, "tandem", length, 5));
  rows.push_back(of_op(row(kNew, "tandem", 9, "varlen_mixed_d1024", "fp16"), "gated_scan"));
  rows.push_back(of_op(row(kNew, "tandem", 9, "b8_t4096_d1024", "fp16"), "gated_scan"));
  const auto three = files(rows, "gated_scan");
  EXPECT_TRUE(find_sweeps(three[0], place_of(select_ops(three)).sections[0]).empty());

  rows.push_back(swept(kNew, "tandem", 4096, 8.25));
  rows.push_back(swept(kNew, "unfused", 4096, 99.5));
  rows.push_back(swept(kOld, "unfused", 512, 77));  // of a run without Tandem
  const auto four = files(rows, "gated_scan");
  const auto ops = select_ops(four);
  const OpSection& section = place_of(ops).sections[0];
  const auto sweeps = find_sweeps(four[0], section);
  ASSERT_EQ(sweeps.size(), 1u);
  EXPECT_EQ(sweeps[0].title, "B4 D64 fp16");
  EXPECT_EQ(sweeps[0].axis, "T");
  ASSERT_EQ(sweeps[0].points.size(), 4u);
  EXPECT_EQ(sweeps[0].points[0].tokens, 512);
  const OpCharts charts(place_of(ops), std::nullopt);
  const std::string chart = charts.sweeps(section);
  EXPECT_THAT(chart, HasSubstr("unfused, sweep_b4_t4096 fp16: 99.5 us"));
  EXPECT_THAT(chart, Not(HasSubstr("77.0 us")));
  EXPECT_EQ(count_of(charts.bars(section), "<rect class='bar'"), 2) << "a point is no bar beside";
}

TEST_F(Report, ASweepIsOfOneRun) {
  Json rows = Json::array();
  for (const int length : {512, 1024, 2048, 4096}) {
    rows.push_back(swept(kOld, "tandem", length, 5));
    if (length > 512) rows.push_back(swept(kNew, "tandem", length, 4));
  }
  const auto loaded = files(rows, "gated_scan");
  const auto sweeps = find_sweeps(loaded[0], place_of(select_ops(loaded)).sections[0]);
  ASSERT_EQ(sweeps.size(), 1u);
  for (const Sweep::Point& point : sweeps[0].points) EXPECT_EQ(point.contest.ours->run, kOld);
}

TEST_F(Report, OneRooflineHasThePointsOfAllRunsAndPeers) {
  const auto loaded = files(many_rows());
  const std::string page = html_report(loaded, {});
  EXPECT_EQ(count_of(page, "aria-label='Roofline of gla'"), 1);
  const auto ops = select_ops(loaded);
  const std::string roofline = OpCharts(place_of(ops), std::nullopt).roofline();
  EXPECT_EQ(count_of(roofline, "class='point'"), 4);
  EXPECT_EQ(count_of(roofline, "class='mark"), 3);
  EXPECT_EQ(count_of(roofline, "class='roof'"), 2) << "the ceilings of two runs differ";
  EXPECT_THAT(roofline, HasSubstr("matrix products, 697 TFLOP/s"));
}

TEST_F(Report, SmallCeilingsKeepTheirDigits) {
  files(Json::array({row(kNew, "tandem", 20)}));
  json_["runs"][kNew]["ceilings"] = {{"copy_tbps", 0.0123}, {"bf16_tflops", 0.084}};
  std::ofstream(folder_ / "gpu/gla.json") << json_.dump();
  const std::string page = html_report(load_results(folder_.string()), {});
  EXPECT_THAT(page, HasSubstr("<b>0.084 TFLOP/s</b>"));
  EXPECT_THAT(page, HasSubstr("<b>0.0123 TB/s</b>"));
}

}  // namespace
}  // namespace tandem::tools
