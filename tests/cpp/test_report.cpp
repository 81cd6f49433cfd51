// The report: each printed number comes from the results, ratios stay within a run, markup is
// escaped.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "report_html.h"
#include "report_markdown.h"
#include "report_svg.h"

namespace tandem::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

Json row(const std::string& run, const std::string& provider, double us,
         const std::string& name = "seed039_t1024_d64", const std::string& dtype = "bf16") {
  return {{"run", run},
          {"op", "gla"},
          {"direction", "forward"},
          {"case", name},
          {"dtype", dtype},
          {"provider", provider},
          {"variant", provider == "tandem" ? Json("gla_forward.sm90.bf16.c64") : Json(nullptr)},
          {"median_us", us},
          {"p10_us", us * 0.97},
          {"p90_us", us * 1.04},
          {"bytes", 67633152},
          {"flops", 4294967296},
          {"floor_us", 15.73},
          {"error", {{"metric", "rel_rms"}, {"value", 0.002363}}}};
}

Json failed(const std::string& run, const std::string& provider, const std::string& text,
            const std::string& name = "seed039_t1024_d64") {
  Json json = row(run, provider, 1, name);
  json.erase("median_us");
  json["failure"] = text;
  return json;
}

Json run_of(const std::string& date, double copy) {
  return {
      {"device", {{"name", "NVIDIA <H200> & co"}, {"driver", "580.159"}, {"sm_clock_mhz", 1980}}},
      {"commit", "abc1234"},
      {"date", date},
      {"command", "tandem bench gla --case '*' | tee \"x\""},
      {"timer", {{"method", "cuda-graph"}, {"l2", "cold"}}},
      {"ceilings", {{"copy_tbps", copy}, {"bf16_tflops", 697.1}}}};
}

class Report : public testing::Test {
 protected:
  Report() : folder_(fs::temp_directory_path() / ("tandem_report_" + std::to_string(getpid()))) {}
  ~Report() override { fs::remove_all(folder_); }

  std::vector<ReportFile> files(const Json& rows, const std::string& op = "gla") {
    json_ = {{"schema", 1},
             {"runs",
              {{"20260102-1", run_of("2026-01-02", 4.299)},
               {"20260101-1", run_of("2026-01-01", 4.251)}}},
             {"rows", rows}};
    fs::create_directories(folder_ / "gpu");
    std::ofstream(folder_ / "gpu" / (op + ".json")) << json_.dump();
    return load_results(folder_.string());
  }

  fs::path folder_;
  Json json_;
};

const std::string kNew = "20260102-1", kOld = "20260101-1";

Json many_rows() {
  Json with_counters = row(kNew, "tandem", 25.88);
  with_counters["counters"] = {{"run", kOld},
                               {"median_us", 26.1},
                               {"dram_read_bytes", 51234567},
                               {"dram_write_bytes", 17654321},
                               {"l1_write_bytes", 16777216},
                               {"l2_bytes", 123456789},
                               {"tensor_pipe_pct", 28.94},
                               {"occupancy_pct", 24.81},
                               {"registers", 168},
                               {"shared_bytes", 185344},
                               {"spill_loads", 3},
                               {"spill_stores", 4},
                               {"wgmma", 131072},
                               {"reading", "memory-bound: 1.02x the fewest bytes"}};
  Json fla = row(kNew, "fla", 38.21);
  fla["first_call_s"] = 12.345;
  return {with_counters,
          fla,
          row(kNew, "unfused", 61.7),
          row(kNew, "tandem", 85.43, "seed039_t4096_d64"),
          row(kNew, "tandem", 24.9, "seed039_t1024_d64", "fp16"),
          failed(kNew, "tfla", "RuntimeError: 3 of 7 <b>fail</b>"),
          row(kOld, "tandem", 90.1, "seed039_t4096_d64"),
          row(kOld, "mamba2", 151.3, "seed039_t4096_d64"),
          row(kOld, "tandem", 317.7, "long_b4h32_t16384_d64"),
          failed(kNew, "tandem", "[gla_forward] no variant", "fla_b8h32_t2048_d256")};
}

std::vector<Json> some_iterations() {
  const auto line = [](double us, const std::string& note) {
    return Json{
        {"device", "GPU"},
        {"op", "gla"},
        {"direction", "forward"},
        {"case", "seed039_t1024_d64"},
        {"dtype", "bf16"},
        {"variant", "v"},
        {"commit", "abc1234"},
        {"note", note},
        {"median_us", us},
        {"floor_us", 15.73},
        {"config", {{"registers", 168}}},
        {"counters",
         {{"tensor_pipe_pct", 28.94}, {"dram_read_bytes", 5e7}, {"dram_write_bytes", 2e7}}}};
  };
  return {line(29.3, "first"), line(27.5, "4 stages <i>"), line(25.9, "no hint")};
}

/// All numbers and all texts of a JSON value.
void collect(const Json& json, std::vector<double>& numbers, std::vector<std::string>& texts) {
  if (json.is_number()) numbers.push_back(json);
  if (json.is_string()) texts.push_back(json);
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      texts.push_back(key);
      collect(value, numbers, texts);
    }
  } else if (json.is_array()) {
    for (const Json& value : json) collect(value, numbers, texts);
  }
}

/// What may be printed: the numbers themselves, and what is formed from numbers of one row, or of
/// two rows of one run, case and dtype.
std::set<std::string> printable(const Json& results, const std::vector<Json>& iterations) {
  std::vector<double> numbers;
  std::vector<std::string> texts;
  collect(results, numbers, texts);
  for (const Json& line : iterations) collect(line, numbers, texts);
  std::set<std::string> allowed;
  const auto ratio = [&](double a, double b) { allowed.insert(fmt::format("{:.2f}", a / b)); };
  const auto bytes = [&](double value) {
    allowed.insert(fmt::format("{:.3f}", value * 1e-9));
    allowed.insert(fmt::format("{:.1f}", value * 1e-6));
    allowed.insert(fmt::format("{:.1f}", value * 1e-3));
  };
  for (const Json& a : results["rows"]) {
    if (!a.contains("median_us")) continue;
    const double us = a["median_us"];
    ratio(us, a["floor_us"]);
    numbers.push_back(a["flops"].get<double>() / us * 1e-6);
    if (a.contains("counters")) {
      const Json& c = a["counters"];
      ratio(c["dram_read_bytes"].get<double>() + c["dram_write_bytes"].get<double>(), a["bytes"]);
      numbers.push_back(c["spill_loads"].get<double>() + c["spill_stores"].get<double>());
    }
    for (const Json& b : results["rows"]) {
      const bool same = b.contains("median_us") && a["run"] == b["run"] && a["case"] == b["case"] &&
                        a["dtype"] == b["dtype"];
      if (same) ratio(b["median_us"], us);
    }
  }
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    numbers.push_back(static_cast<double>(i + 1));
    const Json& counters = iterations[i]["counters"];
    bytes(counters["dram_read_bytes"].get<double>() + counters["dram_write_bytes"].get<double>());
    for (std::size_t j = 0; j < i; ++j) {
      ratio(iterations[j]["median_us"], iterations[i]["median_us"]);
    }
  }
  for (const double number : numbers) {
    allowed.insert(fmt::format("{:.0f}", number));
    allowed.insert(fmt::format("{:.1f}", number));
    allowed.insert(fmt::format("{:.2f}", number));
    allowed.insert(fmt::format("{:.1e}", number));
    bytes(number);
  }
  return allowed;
}

/// Numbers in text that are neither part of a word nor of a text that the results hold.
std::vector<std::string> numbers_in(std::string text, const Json& results,
                                    const std::vector<Json>& iterations) {
  std::vector<double> numbers;
  std::vector<std::string> known;
  collect(results, numbers, known);
  for (const Json& line : iterations) collect(line, numbers, known);
  std::sort(known.begin(), known.end(), [](auto& a, auto& b) { return a.size() > b.size(); });
  for (const std::string& one : known) {
    if (one.size() < 4) continue;
    for (const std::string& spelling : {one, html_escaped(one)}) {
      for (std::size_t at; (at = text.find(spelling)) != std::string::npos;) {
        text.replace(at, spelling.size(), "~");
      }
    }
  }
  const std::regex number(R"((^|[^A-Za-z0-9_.#])(\d+(\.\d+)?(e[-+]\d+)?)(?=x?([^A-Za-z0-9_]|$)))");
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at) {
    found.push_back((*at)[2]);
  }
  return found;
}

/// What a reader sees of a page: text without tags, styles and the ticks of axes.
std::string visible(const std::string& html) {
  std::string text = std::regex_replace(html, std::regex(R"(<style>[^]*?</style>)"), "");
  text = std::regex_replace(text, std::regex(R"(<text class='tick[^>]*>[^<]*</text>)"), "");
  text = std::regex_replace(text, std::regex("<wbr>"), "");
  return std::regex_replace(text, std::regex(R"(<[^>]*>)"), " ");
}

TEST_F(Report, EveryNumberComesFromTheResults) {
  const auto loaded = files(many_rows());
  const std::vector<Json> lines = some_iterations();
  const std::set<std::string> allowed = printable(json_, lines);
  const std::string page = html_report(loaded, {{"gla", lines}});
  // Labels of the axes other than T come from the case table; they are words such as B4.
  for (const std::string& text : {visible(page), markdown_block(loaded, Detail::kFull),
                                  markdown_block(loaded, Detail::kBrief)}) {
    const auto numbers = numbers_in(text, json_, lines);
    EXPECT_GT(numbers.size(), 15u);
    for (const std::string& number : numbers) EXPECT_TRUE(allowed.count(number)) << number;
  }
  // The check can fail.
  EXPECT_THAT(numbers_in("time 77.7 us", json_, lines), testing::ElementsAre("77.7"));
  EXPECT_FALSE(allowed.count("77.7"));
}

TEST_F(Report, EverythingThereIsIsShown) {
  const std::string page = html_report(files(many_rows()), {{"gla", some_iterations()}});
  for (const char* wanted :
       {"<h2>gla forward on gpu</h2>", "38.2 (1.48x)", "61.7 (2.38x)",
        "151.3 (1.68x) in 20260101-1", "failed", "3 of 7 &lt;b&gt;fail", "no variant",
        "Roofline, run 20260102-1", "Roofline, run 20260101-1", "Time against T, run 20260102-1",
        "B4 H32 K64", "memory-bound: 1.02x", "1.02x</td>", "185.3 kB", "131072",
        "fla: 12.3 to 12.3 s", "4 stages &lt;i&gt;", "1.13x", "NVIDIA &lt;H200&gt; &amp; co"}) {
    EXPECT_THAT(page, HasSubstr(wanted));
  }
}

TEST_F(Report, RatiosNeverCrossRuns) {
  // 90.1 is Tandem's time beside mamba2's 151.3; 85.4 is of a later run.
  const std::string text = markdown_block(files(many_rows()), Detail::kFull);
  EXPECT_THAT(text, HasSubstr("| seed039_t4096_d64 | bf16 | 85.4 | 15.7 | 5.43 | - | - | 151.3 "
                              "(1.68x) in 20260101-1 | - | 20260102-1 |"));
  EXPECT_THAT(text, Not(HasSubstr("1.77x")));
  // A peer that no run has beside Tandem is not shown.
  EXPECT_THAT(markdown_block(files({row(kOld, "tandem", 40), row(kNew, "fla", 80)}), Detail::kFull),
              Not(HasSubstr("fla")));
}

TEST_F(Report, TheLatestRunCountsWhateverTheOrder) {
  const Json rows = {row(kNew, "tandem", 20), row(kOld, "tandem", 40)};
  EXPECT_THAT(markdown_block(files(rows), Detail::kFull), HasSubstr("| bf16 | 20.0 |"));
}

TEST_F(Report, BriefShowsOneDtypeOfACase) {
  const auto loaded = files(many_rows());
  EXPECT_THAT(markdown_block(loaded, Detail::kBrief), Not(HasSubstr("fp16")));
  EXPECT_THAT(markdown_block(loaded, Detail::kFull), HasSubstr("| fp16 | 24.9 |"));
}

TEST_F(Report, AWrongResultHasNoTime) {
  Json drifted = row(kNew, "fla", 38.2);
  drifted["failure"] = "wrong result after timing";
  const std::string text = markdown_block(files({row(kNew, "tandem", 20), drifted}), Detail::kFull);
  EXPECT_THAT(text, HasSubstr("| failed |"));
  EXPECT_THAT(text, Not(HasSubstr("38.2")));
  EXPECT_THAT(text,
              HasSubstr("- Failed: fla, run 20260102-1, seed039_t1024_d64 bf16: wrong result"));
}

TEST_F(Report, NothingMeasuredYet) {
  EXPECT_TRUE(load_results((folder_ / "none").string()).empty());
  EXPECT_EQ(markdown_block({}, Detail::kFull), "No measurements yet.\n");
  EXPECT_THAT(html_report({}, {}), HasSubstr("No measurements yet."));
  const auto empty = files(Json::array());
  EXPECT_EQ(markdown_block(empty, Detail::kBrief), "No measurements yet.\n");
  EXPECT_THAT(html_report(empty, {}), HasSubstr("No measurements yet."));
}

TEST_F(Report, OddRowsAreNoCrash) {
  const Json bare = {{"run", kNew},       {"op", "other"},       {"direction", "step"},
                     {"case", "a|b <c>"}, {"dtype", "bf16"},     {"provider", "tandem"},
                     {"median_us", 10},   {"floor_us", nullptr}, {"flops", 0},
                     {"error", nullptr}};
  const auto loaded = files({bare, failed(kNew, "tandem", "x", "only_failed")});
  EXPECT_THAT(markdown_block(loaded, Detail::kFull),
              HasSubstr("| a\\|b &lt;c> | bf16 | 10.0 | - |"));
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
  EXPECT_THAT(message("{"), HasSubstr("gpu/gla.json: not a JSON object"));
  EXPECT_THAT(message(R"({"schema": 2})"), HasSubstr("schema: must be 1, got 2"));
  EXPECT_THAT(message(R"({"schema": 1, "runs": {}})"), HasSubstr("rows: must be a list"));
  EXPECT_THAT(message(R"({"schema": 1, "runs": {}, "rows": [{"run": "9", "case": "a"}]})"),
              HasSubstr("row a names run 9, which the file lacks"));
}

TEST_F(Report, NeedsNothingFromElsewhere) {
  const std::string page = html_report(files(many_rows()), {});
  for (const char* no : {"http:", "https:", "<script", "<link", "<img", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(no)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("@media print"));
}

TEST(ReportBlock, IsBetweenItsMarks) {
  const std::string text = "a\n<!-- results:begin -->\nold\n<!-- results:end -->\nb\n";
  EXPECT_EQ(with_block(text, "new\n", "f"),
            "a\n<!-- results:begin -->\nnew\n<!-- results:end -->\nb\n");
  EXPECT_THROW(with_block("<!-- results:end --><!-- results:begin -->", "", "f"),
               std::runtime_error);
}

TEST(ReportSvg, LabelsDoNotOverlap) {
  Svg svg(100, 200, "t");
  std::vector<PointLabel> labels;
  for (int i = 0; i < 12; ++i) labels.push_back({10, 100 + i * 0.5, "label"});
  draw_label_column(svg, labels, 50, 10, 190);
  const std::string text = svg.str();
  std::vector<double> at;
  const std::regex y("<text[^>]* y='([0-9.]+)'");
  for (std::sregex_iterator one(text.begin(), text.end(), y), end; one != end; ++one) {
    at.push_back(std::stod((*one)[1]));
  }
  ASSERT_EQ(at.size(), 12u);
  for (std::size_t i = 1; i < at.size(); ++i) EXPECT_GE(at[i] - at[i - 1], 12);
  EXPECT_LE(at.back(), 195);
}

}  // namespace
}  // namespace tandem::tools
