// The tables of docs/host.md.
#include <gmock/gmock.h>

#include <cstdlib>
#include <sstream>

#include "cli/report/host.h"
#include "report_fixture.h"

namespace tandem::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Json host_row(const std::string& run, const std::string& op, const std::string& direction,
              const std::string& provider, double us) {
  return {{"run", run},      {"op", op},           {"direction", direction},
          {"case", "host"},  {"dtype", "bf16"},    {"provider", provider},
          {"median_us", us}, {"p10_us", us - 0.5}, {"p90_us", us + 0.5}};
}

Json python_rows() {
  Json broken = host_row(kNew, "gla", "forward", "fla", 1);
  broken.erase("median_us");
  broken["failure"] = "RuntimeError: no <Triton>";
  return {host_row(kOld, "torch", "forward", "add", 2),
          host_row(kOld, "gla", "forward", "tandem", 7),
          host_row(kNew, "torch", "forward", "add", 4),
          host_row(kNew, "torch", "forward_backward", "function", 30),
          host_row(kNew, "gla", "forward", "tandem", 10),
          host_row(kNew, "gla", "forward_backward", "tandem", 45),
          broken};
}

class HostReport : public Report {
 protected:
  void write(const std::string& name, const Json& rows) {
    files(rows);  // makes json_
    fs::remove_all(folder_ / "gpu/gla.json");
    fs::create_directories(folder_ / "gpu/host");
    std::ofstream(folder_ / "gpu/host" / (name + ".json")) << json_.dump();
  }
  std::vector<ReportFile> host() const { return load_host(folder_.string()); }
};

TEST_F(HostReport, RatiosAreOfTheRowsOwnRun) {
  write("python", python_rows());
  const Table table = host_table(host().at(0));
  EXPECT_THAT(table.header, ElementsAre("op", "direction", "provider", "case", "dtype", "time (us)",
                                        "p10 to p90 (us)", "/ torch.add", "/ empty Function"));
  ASSERT_EQ(table.rows.size(), 5u) << "one for each call: the latest";
  EXPECT_THAT(table.rows[1], ElementsAre("gla", "forward", "tandem", "host", "bf16", "10.0",
                                         "9.5 to 10.5", "2.50", "-"));
  EXPECT_THAT(table.rows[3], ElementsAre("gla", "forward + backward", "tandem", "host", "bf16",
                                         "45.0", "44.5 to 45.5", "11.25", "1.50"));
  EXPECT_EQ(table.rows[4][5], "failed");
}

TEST_F(HostReport, ATimeOfAnOlderRunNamesIt) {
  Json rows = python_rows();
  rows.erase(4);  // of the latest run
  write("python", rows);
  const Table table = host_table(host().at(0));
  EXPECT_EQ(table.header.back(), "run");
  EXPECT_THAT(table.rows[1], ElementsAre("gla", "forward", "tandem", "host", "bf16", "7.0",
                                         "6.5 to 7.5", "3.50", "-", kOld));
}

TEST_F(HostReport, AFileWithoutYardsticksHasNoRatios) {
  Json row = host_row(kNew, "gla", "forward", "tandem", 6.25);
  row["plan_us"] = 1.234;
  write("cpp", Json::array({row}));
  const Table table = host_table(host().at(0));
  EXPECT_THAT(table.header, ElementsAre("op", "direction", "provider", "case", "dtype", "time (us)",
                                        "p10 to p90 (us)", "check and choice alone (us)"));
  EXPECT_EQ(table.rows.at(0).back(), "1.23");
}

TEST_F(HostReport, ABlockHasEveryFile) {
  EXPECT_EQ(host_block({}), "No measurements yet.\n");
  write("cpp", Json::array());
  EXPECT_EQ(host_block(host()), "No measurements yet.\n");
  write("cpp", Json::array({host_row(kNew, "gla", "step", "tandem", 3)}));
  write("python", python_rows());
  const std::string text = host_block(host());
  for (const char* wanted :
       {"## cpp.json on gpu\n", "## python.json on gpu\n", "| gla | step | tandem |",
        "- gla forward, fla: RuntimeError: no &lt;Triton>\n", "| 20260102-1 | abc1234 |",
        "timer cuda-graph"}) {
    EXPECT_THAT(text, HasSubstr(wanted));
  }
  EXPECT_THAT(text, Not(HasSubstr("| 20260101-1 |"))) << "nothing shown is of that run";
}

TEST_F(HostReport, OtherReportsDoNotReadIt) {
  write("python", python_rows());
  EXPECT_THAT(load_results(folder_.string()), IsEmpty());
  EXPECT_THAT(load_host((folder_ / "none").string()), IsEmpty());
}

TEST_F(HostReport, TheProgramWritesAndChecksThePage) {
  const std::string marks = "<!-- results:begin -->\n<!-- results:end -->\n";
  const auto page = [&] {
    std::stringstream text;
    text << std::ifstream(folder_ / "docs/host.md").rdbuf();
    return text.str();
  };
  const auto report = [&](const std::string& how) {
    const std::string command = std::string(TANDEM_PROGRAM) + " report --root " + folder_.string() +
                                " --results " + folder_.string() + " " + how + " >" +
                                (folder_ / "output").string();
    return std::system(command.c_str());
  };
  write("python", python_rows());
  files(Json::array({row(kNew, "tandem", 20)}));  // what a report cannot be without
  fs::create_directories(folder_ / "docs");
  for (const char* name : {"README.md", "docs/results.md", "docs/host.md"}) {
    std::ofstream(folder_ / name) << marks;
  }
  EXPECT_EQ(report("--markdown"), 0);
  EXPECT_THAT(page(), HasSubstr("| gla | forward + backward | tandem | host | bf16 | 45.0 |"));
  EXPECT_EQ(report("--check"), 0);
  Json rows = python_rows();
  rows[5]["median_us"] = 46;
  write("python", rows);
  files(Json::array({row(kNew, "tandem", 20)}));
  EXPECT_NE(report("--check"), 0) << "the page has another time";
  EXPECT_THAT(page(), HasSubstr("| 45.0 |")) << "--check writes nothing";
  EXPECT_EQ(report("--markdown"), 0);
  fs::copy(folder_ / "gpu/host/python.json", folder_ / "gpu/host/twice.json");
  EXPECT_EQ(report("--markdown"), 0);
  EXPECT_NE(report("--check"), 0) << "two files have one run";
}

}  // namespace
}  // namespace tandem::tools
