// Each number that the report prints comes from the results.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <set>

#include "cli/report/front.h"
#include "cli/report/html.h"
#include "cli/report/markdown.h"
#include "cli/report/svg.h"
#include "report_fixture.h"

namespace tandem::tools {
namespace {

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
  const auto in_word = [&](std::size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  std::vector<std::string> found;
  for (std::size_t at; (at = text.find_first_of("0123456789")) != std::string::npos;) {
    const char* begin = text.c_str() + at;
    char* end = nullptr;
    std::strtod(begin, &end);
    std::string number(begin, static_cast<const char*>(end));
    if (number.back() == '.') number.pop_back();  // the end of a sentence
    std::size_t after = at + number.size();
    const bool starts = at == 0 || (!in_word(at - 1) && text[at - 1] != '.' && text[at - 1] != '#');
    const bool ends = !in_word(after + (text[after] == 'x' ? 1 : 0));
    if (starts && ends) found.push_back(number);
    while (in_word(after)) ++after;
    text.replace(0, after, 1, starts && ends ? ' ' : '_');
  }
  return found;
}

/// What a reader sees of a page: text without tags, styles and the ticks of axes.
std::string visible(const std::string& html) {
  std::string text = html;
  for (const std::string tag : {"style>", "script>"}) {
    const std::size_t at = text.find("<" + tag);
    text.erase(at, text.find("</" + tag) - at);
  }
  const auto cut = [&](const std::string& from, const std::string& to, const char* with) {
    for (std::size_t at; (at = text.find(from)) != std::string::npos;) {
      text.replace(at, text.find(to, at) + to.size() - at, with);
    }
  };
  cut("<text class='tick", "</text>", "");
  cut("<wbr", ">", "");
  cut("<", ">", " ");
  return text;
}

TEST_F(Report, EveryNumberComesFromTheResults) {
  const auto loaded = files(many_rows());
  const std::vector<Json> lines = some_iterations();
  std::set<std::string> allowed = printable(json_, lines);
  // Of the overview: the cases, and geometric means of times over floors and of peers' times.
  allowed.insert({"3", fmt::format("{:.2f}", std::cbrt(25.88 * 85.43 * 317.7) / 15.73),
                  fmt::format("{:.2f}", std::sqrt(38.21 / 25.88 * 151.3 / 90.1))});
  allowed.insert("5");  // cases of the section
  const std::string page = html_report(loaded, {{"gla", lines}});
  // Labels of the axes other than T come from the case table; they are words such as B4.
  const std::pair<std::string, std::size_t> texts[] = {
      {visible(page), 15}, {markdown_block(loaded), 15}, {front_block(loaded), 2}};
  for (const auto& [text, fewest] : texts) {
    const auto numbers = numbers_in(text, json_, lines);
    EXPECT_GT(numbers.size(), fewest);
    for (const std::string& number : numbers) EXPECT_TRUE(allowed.count(number)) << number;
  }
  // The check can fail.
  EXPECT_THAT(numbers_in("time 77.7 us", json_, lines), testing::ElementsAre("77.7"));
  EXPECT_FALSE(allowed.count("77.7"));
}

}  // namespace
}  // namespace tandem::tools
