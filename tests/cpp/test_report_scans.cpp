// The report of the scans: an op without flops, and the table of linear_scan by three, two and one
// kernel.
#include <gmock/gmock.h>

#include "cli/ops/linear_scan_kernels.h"
#include "cli/report/html.h"
#include "cli/report/markdown.h"
#include "report_fixture.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

Json scan_row(const std::string& op, const std::string& run, const std::string& provider, double us,
              const std::string& name) {
  Json json = row(run, provider, us, name, "fp16");
  json["op"] = op;
  json["variant"] = provider == "tandem" ? op + "_forward.sm90" : provider + ".kernels";
  json["floor_us"] = 4.5;
  if (op == "gated_scan") json["flops"] = 0;
  return json;
}

Json linear(const std::string& run, const std::string& provider, double us,
            const std::string& name = "sweep_b4_t512") {
  return scan_row("linear_scan", run, provider, us, name);
}

Json counted(Json json, double read, double write) {
  json["counters"] = {{"run", kOld}, {"dram_read_bytes", read}, {"dram_write_bytes", write}};
  return json;
}

/// A roofline of an op without flops would have a point at 0 on a logarithmic axis.
TEST_F(Report, AnOpWithoutFlopsHasNoRoofline) {
  const Json rows = {scan_row("gated_scan", kNew, "tandem", 8.25, "sweep_b4_t512"),
                     scan_row("gated_scan", kNew, "tandem", 12.5, "sweep_b4_t1024"),
                     scan_row("gated_scan", kNew, "unfused", 99.5, "sweep_b4_t512")};
  const std::string page = html_report(files(rows, "gated_scan"), {});
  EXPECT_THAT(page, HasSubstr("<h2 id='gated_scan'>gated_scan</h2>"));
  EXPECT_THAT(page, Not(HasSubstr("Roofline")));
  for (const char* no : {"nan", "inf<", "inf'", "inf ", "-nan"}) {
    EXPECT_THAT(page, Not(HasSubstr(no)));
  }
  // Beside an op that has flops the chart is that op's alone.
  Json with = rows;
  with.push_back(row(kNew, "tandem", 25.88));
  const std::string both = html_report(files(with, "gated_scan"), {});
  EXPECT_THAT(both, HasSubstr("Roofline of gla"));
  EXPECT_THAT(both, Not(HasSubstr("Roofline of gated_scan")));
}

TEST_F(Report, BaselinesComeBeforeOtherPeers) {
  const Json rows = {linear(kNew, "tandem", 10), linear(kNew, "fla_chunk_hgrn", 40),
                     linear(kNew, "composed", 20), linear(kNew, "unfused", 30)};
  EXPECT_THAT(markdown_block(files(rows, "linear_scan")),
              HasSubstr("| composed (us) | unfused (us) | fla_chunk_hgrn (us) |"));
}

TEST_F(Report, KernelsSideBySideOfOneRun) {
  const Json rows = {linear(kNew, "composed", 20),
                     counted(linear(kNew, "tandem", 10), 5e6, 1e6),
                     linear(kNew, "unfused", 30),
                     linear(kOld, "unfused", 90),  // an older run of the same
                     linear(kOld, "composed", 80),
                     linear(kOld, "tandem", 70),
                     counted(linear(kOld, "unfused", 50, "sweep_b1_t512"), 7e6, 2e6),
                     linear(kOld, "tandem", 20, "sweep_b1_t512"),
                     linear(kNew, "unfused", 55, "sweep_b1_t512"),    // without Tandem beside it
                     linear(kNew, "tandem", 5, "b4_t2048_d256_d64"),  // the sweep's b4_t2048
                     linear(kNew, "unfused", 50, "b4_t2048_d256_d64"),
                     linear(kNew, "tandem", 200, "b8_t4096_d1024"),
                     linear(kNew, "unfused", 800, "b8_t4096_d1024")};
  const std::string text = kernels_block(files(rows, "linear_scan"));
  EXPECT_THAT(text, HasSubstr("### On gpu\n"));
  EXPECT_THAT(text, HasSubstr("| 4 | 512 | 256 | 64 | fp16 | 30.0 | 20.0 | 10.0 | 1.50x | 3.00x | "
                              "2.00x | - | - | 6.0 MB | - | 0.09x | - | - | 20260102-1 |\n"));
  EXPECT_THAT(text, HasSubstr("| 1 | 512 | 256 | 64 | fp16 | 50.0 | - | 20.0 | - | 2.50x | - | "
                              "9.0 MB | - | - | - | - | - | - | 20260101-1 |\n"));
  EXPECT_THAT(text, HasSubstr("| 8 | 4096 | 1024 | 1024 | fp16 | 800.0 | - | 200.0 | - | 4.00x |"));
  EXPECT_LT(text.find("| 1 | 512 |"), text.find("| 4 | 512 |"));
  EXPECT_LT(text.find("| 4 | 512 |"), text.find("| 8 | 4096 |"));
  EXPECT_THAT(text, Not(HasSubstr("2048")));
  EXPECT_THAT(text, HasSubstr("| 20260102-1 | abc1234 |"));
  EXPECT_THAT(text, HasSubstr("- 20260101-1, 20260102-1: NVIDIA"));
}

TEST_F(Report, GatedScanAloneStandsBesideWhatItMayTake) {
  files(Json::array({linear(kNew, "unfused", 30), linear(kNew, "tandem", 10)}), "linear_scan");
  const auto both = files(
      Json::array({scan_row("gated_scan", kNew, "tandem", 8.25, "sweep_b4_t512")}), "gated_scan");
  EXPECT_THAT(kernels_block(both), HasSubstr("| 8.2 | 14.0 | 20260102-1 |\n"));
}

TEST_F(Report, NoKernelsTableWithoutItsRows) {
  EXPECT_EQ(kernels_block({}), "No measurements yet.\n");
  EXPECT_EQ(kernels_block(files(many_rows())), "No measurements yet.\n");
  EXPECT_EQ(kernels_block(files(Json::array({linear(kNew, "tandem", 10)}), "linear_scan")),
            "No measurements yet.\n");
}

}  // namespace
}  // namespace tandem::tools
