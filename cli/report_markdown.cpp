#include "report_markdown.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tandem::tools {
namespace {

/// Escapes text so that nothing in it is markup.
std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      safe += ' ';
      continue;
    }
    if (c == '<') {
      safe += "&lt;";
      continue;
    }
    if (c == '|') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string line_of(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + escaped(cell) + " |";
  return line + "\n";
}

}  // namespace

std::string to_markdown(const Table& table) {
  std::string text = line_of(table.header) + "|";
  for (const bool numeric : table.numeric) text += numeric ? "---:|" : "---|";
  text += "\n";
  for (const auto& row : table.rows) text += line_of(row);
  return text;
}

std::string markdown_run(const ReportRun& run) {
  return fmt::format("- Run {}: {}\n", run.id, escaped(describe_run(run)));
}

std::string markdown_block(const std::vector<ReportFile>& files, Detail detail) {
  const bool full = detail == Detail::kFull;
  const std::string heading = full ? "## " : "### ";
  std::string text;
  for (const ReportFile& file : files) {
    const std::vector<OpSection> sections = select_sections(file);
    for (const OpSection& section : sections) {
      const Table results = results_table(section, detail);
      if (results.rows.empty()) continue;  // nothing that is shown in brief
      text += fmt::format("{}{} {} on {}\n\n{}\n", heading, section.op,
                          direction_title(section.direction), file.device, to_markdown(results));
      if (full) text += to_markdown(details_table(section)) + "\n";
      const Table counters = full ? counters_table(section) : Table();
      if (!counters.rows.empty()) {
        text += to_markdown(readings_table(section)) + "\n" + to_markdown(counters) + "\n";
      }
      for (const std::string& failure : failures(section, detail)) {
        text += "- Failed: " + escaped(failure) + "\n";
      }
      if (text[text.size() - 2] != '\n') text += "\n";
    }
    for (const ReportRun* run : shown_runs(file, sections, full)) {
      text += markdown_run(*run);
    }
    if (!sections.empty()) text += "\n";
  }
  return text.empty() ? "No measurements yet.\n" : text;
}

std::string markdown_iterations(const std::vector<nlohmann::ordered_json>& lines) {
  std::string text;
  for (const auto& [name, of_case] : iteration_groups(lines)) {
    text += "**" + escaped(name) + "**\n\n" + to_markdown(iterations_table(of_case)) + "\n";
  }
  return text.empty() ? "No iterations yet.\n" : text;
}

std::string with_block(const std::string& text, const std::string& block, const std::string& file,
                       const std::string& name) {
  const std::string begin = "<!-- " + name + ":begin -->", end = "<!-- " + name + ":end -->";
  const std::size_t from = text.find(begin), to = text.find(end);
  if (from == std::string::npos || to == std::string::npos || to < from) {
    throw std::runtime_error(fmt::format("{}: needs {} and {}", file, begin, end));
  }
  return text.substr(0, from) + begin + "\n" + block + text.substr(to);
}

}  // namespace tandem::tools
