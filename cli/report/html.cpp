#include "cli/report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/report/charts.h"
#include "cli/report/overview.h"
#include "cli/report/style.h"
#include "cli/report/text.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string paragraph(const std::string& text) {
  return "<p class='soft'>" + html_escaped(text) + "</p>\n";
}

std::string list(const std::string& title, const std::vector<std::string>& texts) {
  if (texts.empty()) return "";
  std::string html = "<h4>" + html_escaped(title) + "</h4>\n<ul class='list'>\n";
  for (const std::string& text : texts) html += "<li>" + html_escaped(text) + "</li>\n";
  return html + "</ul>\n";
}

/// Folds what is rarely read, or long, under a line that says what it is.
std::string folded(const std::string& title, const std::string& html, const std::string& id = "") {
  return fmt::format("<details{}><summary>{}</summary>\n{}</details>\n",
                     id.empty() ? "" : " id='" + html_escaped(id) + "'", html_escaped(title), html);
}

/// Renders "`a` b" with what is between backticks as code.
std::string with_code(const std::string& text) {
  std::string html = html_escaped(text);
  const std::size_t first = html.find('`'), last = html.rfind('`');
  if (first == last) return html;
  return html.substr(0, first) + "<code>" + html.substr(first + 1, last - first - 1) + "</code>" +
         html.substr(last + 1);
}

/// Renders the device and its ceilings, of the latest run of any of its files.
std::string facts(const std::vector<ReportFile>& files, const std::string& device) {
  const ReportRun* latest = nullptr;
  for (const ReportFile& file : files) {
    if (file.device != device) continue;
    for (const ReportRun& run : file.runs) {
      const bool measures = run.json.contains("ceilings");
      const bool newer =
          latest == nullptr || text_of(run.json, "date") >= text_of(latest->json, "date");
      if (measures && newer) latest = &run;
    }
  }
  if (latest == nullptr) return "";
  std::string html = "<ul class='facts'>\n";
  const auto add = [&](const std::string& value, const std::string& title) {
    if (value.empty() || value.starts_with("-")) return;
    html += fmt::format("<li><b>{}</b><span>{}</span></li>\n", html_escaped(value), title);
  };
  const Json device_json = latest->json.value("device", Json::object());
  const Json ceilings = latest->json.value("ceilings", Json::object());
  add(text_of(device_json, "name"), "device");
  add(three_digits(number_of(ceilings, "copy_tbps")) + " TB/s", "copy, read plus written");
  add(three_digits(number_of(ceilings, "bf16_tflops")) + " TFLOP/s", "bf16 matrix product");
  add(text_of(device_json, "driver"), "driver");
  add(latest->id, "latest run, " + html_escaped(text_of(latest->json, "date")));
  return html + "</ul>\n";
}

/// Renders what a direction's charts leave out.
std::string section_html(const OpPlace& place, const OpSection& section, const OpCharts& charts) {
  std::string html;
  if (!section.is_whole_call())
    html += "<div class='charts'>\n" + charts.bars(section) + "</div>\n";
  html += to_html(results_table(section));
  html += list("Failed or refused", failures(section));
  html += list("First call, compilation included", first_calls(section));
  html += folded("Spread, error, variant", to_html(details_table(section)));
  const Table counters = counters_table(section);
  if (!counters.rows.empty()) {
    html += folded(
        "Counters",
        paragraph("By Nsight Compute in the run named; the time is of the same process without it. "
                  "DRAM writes lack the lines that were still in L2 when the kernel ended.") +
            to_html(readings_table(section)) + to_html(counters));
  }
  const std::size_t count = section.lines.size();
  return folded(fmt::format("{}: {} {}", direction_title(section.direction), count,
                            count == 1 ? "case" : "cases"),
                html, section_id(section, place.file->device));
}

std::string place_html(const OpPlace& place, std::optional<double> launch) {
  const OpCharts charts(place, launch);
  std::vector<std::string> figures;
  std::string sweeps, tables;
  const auto add_figure = [&](std::size_t at, const std::string& title, const std::string& chart) {
    if (chart.empty()) return;
    figures.insert(figures.begin() + static_cast<std::ptrdiff_t>(std::min(at, figures.size())),
                   "<figure><h4>" + html_escaped(title) + "</h4>\n" + chart + "</figure>\n");
  };
  for (const OpSection& section : place.sections) {
    tables += section_html(place, section, charts);
    if (!section.is_whole_call()) continue;
    const std::string title = direction_title(section.direction);
    add_figure(figures.size(), title, charts.bars(section));
    const std::string small = charts.sweeps(section);
    if (small.empty()) continue;
    sweeps += "<h4>" + html_escaped(title) + " against the number of tokens</h4>\n" +
              "<div class='small'>\n" + small + "</div>\n";
  }
  add_figure(2, "roofline", charts.roofline());  // on paper three figures share a row
  const auto runs = shown_runs(*place.file, place.sections, true);
  return fmt::format("{}<div class='charts'>\n{}</div>\n{}{}", charts.legend(),
                     fmt::join(figures, ""), sweeps, tables) +
         folded("Runs", to_html(runs_table(runs)) + list("What they share", run_settings(runs)));
}

/// Renders the iterations of one op, a table for each case, dtype and device.
std::string iterations_html(const std::vector<Json>& lines) {
  std::string html = paragraph(
      "Each line is a measured version of the kernel. Lines are of different runs on one device: a "
      "difference inside the spread of a version is noise.");
  for (const auto& [name, of_case] : iteration_groups(lines)) {
    html += "<h4>" + html_escaped(name) + "</h4>\n" + to_html(iterations_table(of_case));
  }
  return html;
}

/// Renders an op: its first place open, the others folded.
std::string op_html(const OpReport& op, const std::vector<ReportFile>& files) {
  std::string html = fmt::format("<section>\n<h2 id='{0}'>{0}</h2>\n", html_escaped(op.op));
  for (const OpPlace& place : op.places) {
    const bool first = &place == &op.places.front();
    const std::string& device = place.file->device;
    const std::string body = place_html(place, launch_us(files, device));
    html +=
        first ? "<h3>On " + html_escaped(device) + "</h3>\n" + body : folded("On " + device, body);
  }
  return html;
}

}  // namespace

std::string to_html(const Table& table) {
  std::string html = "<div class='wide'><table class='sorted'>\n<thead><tr>";
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
      html += fmt::format("<td{}>{}</td>", css, with_code(row[i]));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_report(const std::vector<ReportFile>& files,
                        const std::map<std::string, std::vector<Json>>& iterations) {
  const std::vector<OpReport> ops = select_ops(files);
  std::vector<std::string> devices;
  std::string contents = "<li><a href='#overview'>overview</a></li>\n";
  std::string sections;
  for (const OpReport& op : ops) {
    contents += fmt::format("<li><a href='#{0}'>{0}</a></li>\n", html_escaped(op.op));
    sections += op_html(op, files);
    const auto log = iterations.find(op.op);
    if (log != iterations.end() && !log->second.empty()) {
      sections += folded("Tuning log", iterations_html(log->second));
    }
    sections += "</section>\n";
    for (const OpPlace& place : op.places) {
      const std::string& device = place.file->device;
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
        devices.push_back(device);
      }
    }
  }
  std::string body = "<h1>Tandem: measured times</h1>\n";
  if (ops.empty()) {
    body += "<p>No measurements yet.</p>\n";
  } else {
    body += "<nav><ul>\n" + contents + "</ul></nav>\n<section>\n<h2 id='overview'>overview</h2>\n";
    body += paragraph(
        "Times are medians in microseconds, of random data with a cold L2 where the run says so. "
        "The floor is the least time that the device could take: the larger of the fewest bytes "
        "over the speed of a copy and the flops over the speed of a matrix product, both measured "
        "in the same run. It leaves out the launch, which a call of a few microseconds mostly is. "
        "Times faster: the fastest peer's time over Tandem's. Every ratio is formed within one "
        "run. A dot is a case; numbers and bars are geometric means.");
    for (const std::string& device : devices) {
      body += "<h3>" + html_escaped(device) + "</h3>\n" + facts(files, device) +
              overview_html(ops, device);
    }
    body += "</section>\n" + sections;
  }
  return fmt::format(
      "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
      "<title>Tandem: measured times</title>\n<style>{}</style>\n</head>\n<body>\n{}"
      "<script>{}</script>\n</body>\n</html>\n",
      kReportStyle, body, kReportScript);
}

}  // namespace tandem::tools
