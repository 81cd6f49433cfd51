#include "cli/profile/ncu_csv.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace tandem::tools {
namespace {

constexpr const char* kKernelColumn = "Kernel Name";

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

/// "1,234.5" and "12 (3; 4; 5)" (a metric with instances) are numbers; "", "n/a", "nan" are not.
std::optional<double> parse_number(const std::string& field) {
  std::string text = trimmed(std::string_view(field).substr(0, field.find(" (")));
  std::erase(text, ',');
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// Factor from a unit to bytes, microseconds or plain numbers. ncu scales units unless it is told
/// --print-units base.
double unit_factor(const std::string& name, const std::string& unit) {
  if (name == "profiled_us") {
    for (const auto& [spelling, factor] :
         std::vector<std::pair<const char*, double>>{{"ns", 1e-3},
                                                     {"nsecond", 1e-3},
                                                     {"us", 1},
                                                     {"usecond", 1},
                                                     {"ms", 1e3},
                                                     {"msecond", 1e3},
                                                     {"s", 1e6},
                                                     {"second", 1e6}}) {
      if (unit == spelling) return factor;
    }
    return 1e-3;  // base unit
  }
  if (unit.find("byte") == std::string::npos && unit.find("inst") == std::string::npos) return 1;
  switch (unit[0]) {
    case 'K': return 1e3;
    case 'M': return 1e6;
    case 'G': return 1e9;
    case 'T': return 1e12;
    default: return 1;
  }
}

struct Column {
  const CounterField* field;
  std::size_t index;
};

std::vector<Column> find_columns(const std::vector<std::string>& header) {
  std::vector<Column> columns;
  for (const CounterField& field : kCounterFields) {
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (trimmed(header[i]) != field.metric) continue;
      columns.push_back({&field, i});
      break;
    }
  }
  return columns;
}

}  // namespace

std::vector<std::string> parse_csv_line(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<Counters> parse_ncu_csv(std::string_view text) {
  std::vector<Counters> launches;
  std::vector<std::string> header, units;
  std::vector<Column> columns;
  std::size_t kernel_column = 0;
  // why line by line: ncu breaks no field over lines, and so a lone quote in a message between the
  // lines cannot swallow what follows.
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::vector<std::string> fields = parse_csv_line(line);
    const auto at = std::find(fields.begin(), fields.end(), kKernelColumn);
    if (at != fields.end()) {  // again where two outputs were put together
      header = fields;
      units.assign(header.size(), "");
      columns = find_columns(header);
      kernel_column = at - fields.begin();
      continue;
    }
    if (header.empty() || fields.size() != header.size()) continue;  // a message, or cut short
    const std::string kernel = trimmed(fields[kernel_column]);
    if (kernel.empty()) {  // only the row of units names no kernel
      for (std::size_t i = 0; i < units.size(); ++i) units[i] = trimmed(fields[i]);
      continue;
    }
    Counters& launch = launches.emplace_back();
    launch.kernel = kernel;
    for (const Column& column : columns) {
      const std::optional<double> value = parse_number(fields[column.index]);
      if (!value) continue;
      launch.values[column.field->name] =
          *value * unit_factor(column.field->name, units[column.index]);
    }
  }
  return launches;
}

std::string ncu_complaint(std::string_view text) {
  for (const std::string_view mark : {"==ERROR==", "==WARNING=="}) {
    const std::size_t at = text.find(mark);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = text.substr(at + mark.size());
    return trimmed(rest.substr(0, rest.find('\n')));
  }
  return "";
}

}  // namespace tandem::tools
