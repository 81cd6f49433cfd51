#include "cli/report/html.h"

#include <fmt/format.h>

#include "cli/report/charts.h"
#include "cli/report/style.h"
#include "cli/report/svg.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string paragraph(const std::string& text) {
  return "<p class='soft'>" + html_escaped(text) + "</p>\n";
}

/// Renders "`a` b" with what is between backticks as code.
std::string with_code(const std::string& text) {
  std::string html = html_escaped(text);
  const std::size_t first = html.find('`'), last = html.rfind('`');
  if (first == last) return html;
  return html.substr(0, first) + "<code>" + html.substr(first + 1, last - first - 1) + "</code>" +
         html.substr(last + 1);
}

/// Renders text that may break after the dots and underscores of a long name.
std::string cell_html(const std::string& text) {
  constexpr std::size_t kName = 28;
  if (text.size() < kName || text.find(' ') != std::string::npos) return with_code(text);
  const std::string html = html_escaped(text);
  std::string broken;
  for (const char c : html) {
    broken += c;
    if (c == '.' || c == '_') broken += "<wbr>";
  }
  return "<span class='name'>" + broken + "</span>";
}

/// Renders the device and its ceilings, of the latest run that is shown.
std::string facts(const ReportRun& run) {
  std::string html = "<ul class='facts'>\n";
  const auto add = [&](const char* group, const char* field, const char* title,
                       const char* format) {
    const Json& json = *group == '\0' ? run.json : run.json.value(group, Json::object());
    const auto at = json.find(field);
    if (at == json.end() || at->is_null()) return;
    const std::string text = at->is_number()
                                 ? fmt::format(fmt::runtime(format), at->get<double>())
                                 : (at->is_string() ? at->get<std::string>() : at->dump());
    html += fmt::format("<li><b>{}</b><span>{}</span></li>\n", html_escaped(text), title);
  };
  add("device", "name", "device", "{}");
  add("ceilings", "copy_tbps", "copy, read plus written", "{:.2f} TB/s");
  add("ceilings", "bf16_tflops", "bf16 matrix product", "{:.0f} TFLOP/s");
  add("device", "sm_clock_mhz", "SM clock", "{:.0f} MHz");
  add("device", "driver", "driver", "{}");
  add("", "commit", "commit", "{}");
  add("", "date", "date", "{}");
  return html + fmt::format("<li><b>{}</b><span>run</span></li>\n</ul>\n", html_escaped(run.id));
}

std::string section_html(const ReportFile& file, const OpSection& section) {
  std::string html =
      fmt::format("<h2>{} {} on {}</h2>\n", html_escaped(section.op),
                  html_escaped(direction_title(section.direction)), html_escaped(file.device));
  const std::vector<std::string> runs = runs_of(section);
  if (!runs.empty()) html += facts(file.runs[file.age(runs.back())]);
  html += to_html(results_table(section));
  const std::vector<std::string> failed = failures(section);
  if (!failed.empty()) {
    html += "<h3>Failed or refused</h3>\n<ul class='list'>\n";
    for (const std::string& text : failed) html += "<li>" + html_escaped(text) + "</li>\n";
    html += "</ul>\n";
  }
  const std::string bars = peer_charts(file, section);
  if (!bars.empty()) {
    html += "<h3>Beside other libraries</h3>\n";
    html += paragraph("Shorter is faster. In parentheses: time over Tandem's in the same run.");
    for (const std::string& peer : section.peers) {
      if (!is_yardstick(peer)) continue;
      html +=
          paragraph("sdpa is softmax attention of the same shape: a yardstick, not this function.");
      break;
    }
    html += "<div class='small'>\n" + bars + "</div>\n";
  }
  const std::vector<std::string> first = first_calls(section);
  if (!first.empty()) {
    html += "<h3>First call, compilation included</h3>\n<ul class='list'>\n";
    for (const std::string& text : first) html += "<li>" + html_escaped(text) + "</li>\n";
    html += "</ul>\n";
  }
  for (const std::string& run : runs) {
    const std::string roofline = roofline_chart(file, section, run);
    if (!roofline.empty()) html += "<h3>Roofline, run " + html_escaped(run) + "</h3>\n" + roofline;
  }
  for (const std::string& run : runs) {
    const std::string length = length_chart(section, run);
    if (!length.empty()) {
      html += "<h3>Time against T, run " + html_escaped(run) + "</h3>\n" + length;
    }
  }
  const Table counters = counters_table(section);
  html += "<h3>Spread, error, variant</h3>\n" + to_html(details_table(section));
  if (!counters.rows.empty()) {
    html += "<h3>Counters</h3>\n" +
            paragraph(
                "By Nsight Compute in the run named; the time is of the same process without "
                "it. DRAM writes lack the lines that were still in L2 when the kernel ended.") +
            to_html(readings_table(section)) + to_html(counters);
  }
  return html;
}

/// Renders the iterations of one op, a table for each case, dtype and device.
std::string iterations_html(const std::string& op, const std::vector<Json>& lines) {
  std::string html = "<h2>Iterations of " + html_escaped(op) + "</h2>\n";
  html += paragraph(
      "Each line is a measured version of the kernel. Lines are of different runs on "
      "one device: a difference inside the spread of a version is noise.");
  for (const auto& [name, of_case] : iteration_groups(lines)) {
    html += "<h3>" + html_escaped(name) + "</h3>\n" + to_html(iterations_table(of_case));
  }
  return html;
}

}  // namespace

std::string to_html(const Table& table) {
  std::string html = "<div class='wide'><table>\n<thead><tr>";
  for (std::size_t i = 0; i < table.header.size(); ++i) {
    html += fmt::format("<th{}>{}</th>", table.numeric[i] ? " class='number'" : "",
                        html_escaped(table.header[i]));
  }
  html += "</tr></thead>\n<tbody>\n";
  constexpr std::size_t kLong = 44;
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const char* css = table.numeric[i]        ? " class='number'"
                        : row[i].size() > kLong ? " class='long'"
                                                : "";
      html += fmt::format("<td{}>{}</td>", css, cell_html(row[i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_report(const std::vector<ReportFile>& files,
                        const std::map<std::string, std::vector<Json>>& iterations) {
  std::string body = "<h1>Tandem: measured times</h1>\n";
  body += paragraph(
      "Times are medians in microseconds, of random data with a cold L2 where the run says so. The "
      "floor is the least time that the device could take: the larger of the fewest bytes over the "
      "speed of a copy and the flops over the speed of a matrix product, both measured in the same "
      "run. Every ratio is formed within one run; where that is not the run of its row, it is "
      "named.");
  bool any = false;
  std::string runs;
  for (const ReportFile& file : files) {
    const std::vector<OpSection> sections = select_sections(file);
    for (const OpSection& section : sections) body += section_html(file, section);
    any = any || !sections.empty();
    const std::vector<const ReportRun*> shown = shown_runs(file, sections, true);
    if (shown.empty()) continue;
    runs += fmt::format("<h3>Of {} on {}</h3>\n{}<ul class='list'>\n", html_escaped(file.name),
                        html_escaped(file.device), to_html(runs_table(shown)));
    for (const std::string& text : run_settings(shown)) {
      runs += "<li>" + html_escaped(text) + "</li>\n";
    }
    runs += "</ul>\n";
  }
  if (!any) body += "<p>No measurements yet.</p>\n";
  for (const auto& [op, lines] : iterations) {
    if (!lines.empty()) body += iterations_html(op, lines);
  }
  if (!runs.empty()) body += "<h2>Runs</h2>\n" + runs;
  return fmt::format(
      "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
      "<title>Tandem: measured times</title>\n<style>{}</style>\n</head>\n<body>\n{}</body>\n"
      "</html>\n",
      kReportStyle, body);
}

}  // namespace tandem::tools
