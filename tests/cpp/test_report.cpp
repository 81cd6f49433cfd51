// The report: what is shown, ratios stay within a run, markup is escaped.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cli/report/front.h"
#include "cli/report/html.h"
#include "cli/report/markdown.h"
#include "cli/report/svg.h"
#include "report_fixture.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(Report, EverythingThereIsIsShown) {
  const std::string page = html_report(files(many_rows()), {{"gla", some_iterations()}});
  for (const char* wanted : {"<h2 id='gla'>gla</h2>",
                             "<h3>On gpu</h3>",
                             "<summary>forward: 5 cases</summary>",
                             "38.2 (1.48x)",
                             "61.7 (2.38x)",
                             "151 (1.68x) in 20260101-1",
                             "failed",
                             "3 of 7 &lt;b&gt;fail",
                             "no variant",
                             "Roofline of gla",
                             "copy, 4.25 to 4.30 TB/s",
                             "25.9 us, fla 1.48x",
                             "B4 H32 T4096 D64 in 20260101-1",
                             "90.1 us, mamba2 1.68x",
                             "memory-bound: 1.02x",
                             "1.02x</td>",
                             "185.3 kB",
                             "131072",
                             "fla: 12.3 to 12.3 s",
                             "<summary>Tuning log</summary>",
                             "4 stages &lt;i&gt;",
                             "1.13x",
                             "NVIDIA &lt;H200&gt; &amp; co"}) {
    EXPECT_THAT(page, HasSubstr(wanted));
  }
}

TEST_F(Report, IterationsAreATableForEachCase) {
  const std::string text = markdown_iterations(some_iterations());
  EXPECT_THAT(text, HasSubstr("**forward "));
  EXPECT_THAT(text, HasSubstr("4 stages &lt;i>"));
  EXPECT_THAT(text, HasSubstr("| 1.13x |"));
  const std::string marked = "x\n<!-- iterations:begin -->\nold\n<!-- iterations:end -->\ny\n";
  EXPECT_EQ(with_block(marked, text, "f", "iterations"),
            "x\n<!-- iterations:begin -->\n" + text + "<!-- iterations:end -->\ny\n");
}

TEST_F(Report, RatiosNeverCrossRuns) {
  // 90.1 is Tandem's time beside mamba2's 151.3; 85.4 is of a later run.
  const std::string text = markdown_block(files(many_rows()));
  EXPECT_THAT(text,
              HasSubstr("| b4h32_t4096_d64 | B4 H32 T4096 D64 | bf16 | 85.4 | 15.7 | 5.43 | - | "
                        "- | 151 (1.68x) in 20260101-1 | - | 20260102-1 |"));
  EXPECT_THAT(text, Not(HasSubstr("1.77x")));
  // A peer that no run has beside Tandem is not shown.
  EXPECT_THAT(markdown_block(files({row(kOld, "tandem", 40), row(kNew, "fla", 80)})),
              Not(HasSubstr("fla")));
}

TEST_F(Report, TheLatestRunCountsWhateverTheOrder) {
  const Json rows = {row(kNew, "tandem", 20), row(kOld, "tandem", 40)};
  EXPECT_THAT(markdown_block(files(rows)), HasSubstr("| bf16 | 20.0 |"));
}

TEST_F(Report, TheFrontPageHasOneLineForEachCaseTaggedFront) {
  Json rows = many_rows();
  rows.push_back(row(kOld, "sdpa_flash", 120.1, "b4h32_t4096_d64"));  // something else: no peer
  rows.push_back(row(kOld, "tfla", 170.2, "b4h32_t4096_d64"));
  rows.push_back(row(kNew, "tandem", 80, "b4h32_t4096_d64", "fp16"));
  const std::string text = front_block(files(rows));
  EXPECT_THAT(text,
              HasSubstr("| gla | B4 H32 T4096 D64 | 85.4 | 5.43 | mamba2 1.68x | - | - | - |\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6) << "not a case of many_rows() more";
  EXPECT_EQ(front_block(files(Json::array({row(kNew, "tandem", 20)}))), "No measurements yet.\n");
}

TEST_F(Report, SoftmaxAttentionIsAPeerOfAttention) {
  Json rows = {row(kNew, "tandem", 20, "b2_h16_s8192_d128_causal"),
               row(kNew, "sdpa_flash", 50, "b2_h16_s8192_d128_causal")};
  for (Json& one : rows) one["op"] = "attention";
  EXPECT_THAT(
      front_block(files(rows, "attention")),
      HasSubstr("| attention | B2 H16 T8192 D128 causal | 20.0 | 1.27 | sdpa_flash 2.50x |"));
}

TEST_F(Report, ARefusalIsNoFailure) {
  const Json refused = failed(kNew, "tfla", "refused: dense batches only");
  const std::string text = markdown_block(files({row(kNew, "tandem", 20), refused}));
  EXPECT_THAT(text, HasSubstr("| n/a |"));
  EXPECT_THAT(text, HasSubstr("- tfla, run 20260102-1, b4h32_t1024_d64 bf16: refused: dense"));
}

TEST_F(Report, ARunIsOneReadableLine) {
  files(many_rows());
  std::string names = "a";
  for (int i = 0; i < 300; ++i) names += ",case_" + std::to_string(i);
  json_["runs"][kNew]["command"] =
      "tandem bench gla --case " + names +
      " --run mine --json deep/gla.json --tag bench; tandem x; tandem y";
  json_["runs"][kOld]["command"] = "tandem " + std::string(400, 'x');
  std::ofstream(folder_ / "gpu/gla.json") << json_.dump();
  const std::string text = markdown_block(load_results(folder_.string()));
  EXPECT_THAT(text, HasSubstr("| abc1234 | 1980 | - | 4.30 | 697 | `tandem bench gla --case (301 "
                              "patterns) --tag bench; and 2 more` |"));
  std::istringstream lines(text.substr(text.find("## Runs of gla on gpu")));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 200u) << line;
}

TEST_F(Report, RunsOfTwoFilesHaveIdsOfTheirOwn) {
  const Json rows = Json::array({row(kNew, "tandem", 20)});
  files(rows, "gla");
  const auto both = files(rows, "gated_scan");
  EXPECT_THAT(repeated_runs(both),
              testing::ElementsAre("gpu: run 20260101-1 is in gated_scan.json and in gla.json",
                                   "gpu: run 20260102-1 is in gated_scan.json and in gla.json"));
  EXPECT_TRUE(repeated_runs({both[0]}).empty());
}

TEST_F(Report, AWrongResultHasNoTime) {
  Json drifted = row(kNew, "fla", 38.2);
  drifted["failure"] = "wrong result after timing";
  const std::string text = markdown_block(files({row(kNew, "tandem", 20), drifted}));
  EXPECT_THAT(text, HasSubstr("| failed |"));
  EXPECT_THAT(text, Not(HasSubstr("38.2")));
  EXPECT_THAT(text, HasSubstr("- fla, run 20260102-1, b4h32_t1024_d64 bf16: wrong result"));
}

TEST_F(Report, NothingMeasuredYet) {
  EXPECT_TRUE(load_results((folder_ / "none").string()).empty());
  EXPECT_EQ(markdown_block({}), "No measurements yet.\n");
  EXPECT_THAT(html_report({}, {}), HasSubstr("No measurements yet."));
  const auto empty = files(Json::array());
  EXPECT_EQ(front_block(empty), "No measurements yet.\n");
  EXPECT_THAT(html_report(empty, {}), HasSubstr("No measurements yet."));
}

TEST_F(Report, OddRowsAreNoCrash) {
  const Json bare = {{"run", kNew},       {"op", "other"},       {"direction", "step"},
                     {"case", "a|b <c>"}, {"dtype", "bf16"},     {"provider", "tandem"},
                     {"median_us", 10},   {"floor_us", nullptr}, {"flops", 0},
                     {"error", nullptr}};
  const auto loaded = files({bare, failed(kNew, "tandem", "x", "only_failed")});
  EXPECT_THAT(markdown_block(loaded), HasSubstr("| a\\|b &lt;c> | - | bf16 | 10.0 | - |"));
  const std::string page = html_report(loaded, {});
  EXPECT_THAT(page, HasSubstr("a|b &lt;c&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<c>")));
}

TEST_F(Report, WrongFilesAreNamed) {
  const auto message = [&](const std::string& text) -> std::string {
    fs::create_directories(folder_ / "gpu");
    std::ofstream(folder_ / "gpu/gla.json") << text;
    try {
      load_results(folder_.string());
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("{"), HasSubstr("gpu/gla.json: not valid JSON: parse error at line 1"));
  EXPECT_THAT(message("[]"), HasSubstr("gpu/gla.json: must be a JSON object"));
  EXPECT_THAT(message(R"({"schema": "1"})"), HasSubstr("gla.json: schema: must be 1, got \"1\""));
  EXPECT_THAT(message(R"({"schema": )" + std::string(100000, '[')),
              HasSubstr("gpu/gla.json: not valid JSON: nested deeper than 32 levels"));
  const std::string runs = R"({"schema": 1, "runs": {"9": )";
  EXPECT_THAT(message(runs + R"(5}, "rows": []})"), HasSubstr("run 9: must be an object, got 5"));
  EXPECT_THAT(message(runs + R"({"device": 5}}, "rows": []})"),
              HasSubstr("gpu/gla.json: run 9: device: must be an object, got 5"));
  EXPECT_THAT(message(runs + R"({}}, "rows": [{"run": "9"}, {"run": "9", "case": 5}]})"),
              HasSubstr("gpu/gla.json: row 2: case: must be a string, got 5"));
  EXPECT_THAT(message(runs + R"({}}, "rows": [{"run": "9", "median_us": 1e300}]})"),
              HasSubstr("gla.json: row 1: median_us: must be 0 or from 1e-9 to 1e18, got 1e+300"));
  EXPECT_THAT(message(runs + R"({"ceilings": {"copy_tbps": -1}}}, "rows": []})"),
              HasSubstr("run 9: ceilings: copy_tbps: must be 0 or from 1e-9 to 1e18, got -1"));
  EXPECT_THAT(message(R"({"schema": 2})"), HasSubstr("schema: must be 1, got 2"));
  EXPECT_THAT(message(R"({"schema": 1, "runs": {}})"), HasSubstr("rows: must be a list"));
  EXPECT_THAT(message(R"({"schema": 1, "runs": {}, "rows": [{"run": "9", "case": "a"}]})"),
              HasSubstr("row a names run 9, which the file lacks"));
}

TEST_F(Report, WrongLogsAreNamed) {
  fs::create_directories(folder_);
  const auto message = [&](const std::string& text) -> std::string {
    std::ofstream(folder_ / "gla.iterations.jsonl") << text;
    try {
      load_iterations(folder_.string());
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string file = (folder_ / "gla.iterations.jsonl").string();
  EXPECT_EQ(message("{}\n\n{\"case\": 5}\n"), file + ":3: case: must be a string, got 5");
  EXPECT_EQ(message("{\"device\": [1]}"), file + ":1: device: must be a string, got [1]");
  EXPECT_EQ(message("{\"median_us\": \"1\"}"), file + ":1: median_us: must be a number, got \"1\"");
  EXPECT_EQ(message("{}\n[]\n"), file + ":2: must be a JSON object");
  EXPECT_EQ(message("{\"case\": " + std::string(100000, '[')),
            file + ":1: not valid JSON: nested deeper than 32 levels");
  EXPECT_EQ(message("{\"case\": null, \"counters\": null}\n"), "");
  EXPECT_THAT(markdown_iterations(read_log(file)), HasSubstr("| 1 |"));
}

TEST_F(Report, NeedsNothingFromElsewhere) {
  const std::string page = html_report(files(many_rows()), {});
  for (const char* no : {"http:", "https:", "<script ", "<link", "<img", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(no)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("@media print"));
}

class ReportProgram : public Report {
 protected:
  int run(const std::string& arguments) const {
    const std::string command = std::string(TANDEM_PROGRAM) + " report --root " + folder_.string() +
                                " " + arguments + " >" + (folder_ / "output").string() + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string read(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }
};

TEST_F(ReportProgram, CheckFailsUntilTheTablesAreWritten) {
  const std::string empty = "# x\n<!-- results:begin -->\n<!-- results:end -->\nend\n";
  files(Json::array({row(kNew, "tandem", 20, "b4h32_t4096_d64")}));
  fs::create_directories(folder_ / "docs");
  fs::create_directories(folder_ / "bench");
  fs::create_directories(folder_ / "bench/results");
  fs::rename(folder_ / "gpu", folder_ / "bench/results/gpu");
  std::ofstream(folder_ / "README.md") << empty;
  std::ofstream(folder_ / "docs/results.md") << empty;
  fs::create_directories(folder_ / "docs/ops");
  std::ofstream(folder_ / "docs/ops/linear_scan.log.md") << empty;  // optional
  EXPECT_EQ(run("--check"), 1);
  EXPECT_THAT(read("output"), HasSubstr("README.md, docs/results.md, docs/ops/linear_scan.log.md"));
  EXPECT_EQ(read("README.md"), empty) << "--check writes nothing";
  EXPECT_EQ(run("--markdown --out " + (folder_ / "r.html").string()), 0) << read("output");
  EXPECT_THAT(read("README.md"), HasSubstr("| gla | B4 H32 T4096 D64 | 20.0 |"));
  EXPECT_THAT(read("docs/results.md"), HasSubstr("<!-- results:end -->\nend\n"));
  EXPECT_THAT(read("r.html"), HasSubstr("</html>"));
  EXPECT_EQ(run("--check"), 0) << read("output");
  EXPECT_THAT(read("docs/ops/linear_scan.log.md"),
              HasSubstr("begin -->\nNo measurements yet.\n<!--"));
  fs::copy(folder_ / "bench/results/gpu/gla.json", folder_ / "bench/results/gpu/other.json");
  EXPECT_EQ(run("--check"), 1);
  EXPECT_THAT(read("output"), HasSubstr("run 20260102-1 is in gla.json and in other.json"));
  fs::remove(folder_ / "bench/results/gpu/other.json");
  fs::remove_all(folder_ / "docs/ops");
  EXPECT_EQ(run("--check --iterations " + folder_.string()), 0) << read("output");
  EXPECT_EQ(run(""), 2) << "nothing to write";
}

TEST_F(ReportProgram, NeedsARow) {
  const std::string out = " --out " + (folder_ / "r.html").string();
  files(Json::array());
  EXPECT_EQ(run("--results " + folder_.string() + out), 1);
  EXPECT_EQ(read("output"),
            "tandem: nothing to report: no row of results in " + folder_.string() + "\n");
  EXPECT_EQ(run(out), 1) << "no folder of results";
  EXPECT_THAT(read("output"),
              HasSubstr("no row of results in " + folder_.string() + "/bench/results"));
  EXPECT_FALSE(fs::exists(folder_ / "r.html"));
}

TEST_F(ReportProgram, TakesFilesByName) {
  const std::string out = " --out " + (folder_ / "r.html").string();
  files(Json::array({row(kNew, "tandem", 20)}));
  const std::string file = (folder_ / "gpu/gla.json").string();
  EXPECT_EQ(run(file + out), 0) << read("output");
  EXPECT_THAT(read("r.html"), HasSubstr("<h3>On NVIDIA &lt;H200&gt; &amp; co</h3>"));
  EXPECT_EQ(run(file + out + " --check"), 2);
  EXPECT_EQ(run((folder_ / "none.json").string() + out), 2);
}

TEST(ReportBlock, IsBetweenItsMarks) {
  const std::string text = "a\n<!-- results:begin -->\nold\n<!-- results:end -->\nb\n";
  EXPECT_EQ(with_block(text, "new\n", "f"),
            "a\n<!-- results:begin -->\nnew\n<!-- results:end -->\nb\n");
  EXPECT_THROW(with_block("<!-- results:end --><!-- results:begin -->", "", "f"),
               std::runtime_error);
}

}  // namespace
}  // namespace tandem::tools
