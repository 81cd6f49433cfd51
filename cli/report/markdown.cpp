#include "cli/report/markdown.h"

#include <fmt/format.h>

#include <sstream>
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

std::string markdown_item(const std::string& text) {
  constexpr std::size_t kColumns = 118;
  std::istringstream words(escaped(text));
  std::string item = "-";
  std::size_t column = 1;
  for (std::string word; words >> word;) {
    const bool fits = column + 1 + word.size() <= kColumns || column <= 2;
    item += fits ? " " + word : "\n  " + word;
    column = (fits ? column + 1 : 2) + word.size();
  }
  return item + "\n";
}

std::string markdown_runs(const std::vector<const ReportRun*>& runs) {
  std::string text = to_markdown(runs_table(runs)) + "\n";
  for (const std::string& setting : run_settings(runs)) text += markdown_item(setting);
  return text + "\n";
}

std::string markdown_block(const std::vector<ReportFile>& files) {
  std::string text;
  for (const OpReport& op : select_ops(files)) {
    for (const auto& [file, sections] : op.places) {
      for (const OpSection& section : sections) {
        text += fmt::format(
            "## {} {} on {}\n\n{}\n{}\n", section.op, direction_title(section.direction),
            file->device, to_markdown(results_table(section)), to_markdown(details_table(section)));
        const Table counters = counters_table(section);
        if (!counters.rows.empty()) {
          text += to_markdown(readings_table(section)) + "\n" + to_markdown(counters) + "\n";
        }
        const std::vector<std::string> failed = failures(section);
        for (const std::string& failure : failed) text += markdown_item(failure);
        if (!failed.empty()) text += "\n";
      }
      text += fmt::format("## Runs of {} on {}\n\n", op.op, file->device);
      text += markdown_runs(shown_runs(*file, sections, true));
    }
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
