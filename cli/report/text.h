// Fields and numbers as the cells of tables: "-" stands for what there is not.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

#include "cli/profile/print.h"
#include "cli/report/tables.h"

namespace tandem::tools {

inline std::string fixed(std::optional<double> value, int digits) {
  constexpr double kLong = 1e9;
  if (!value) return "-";
  return *value < kLong ? fmt::format("{:.{}f}", *value, digits) : fmt::format("{:.2e}", *value);
}

/// Returns three digits, or all that stand before the point.
inline std::string three_digits(std::optional<double> value) {
  if (value && *value < 0.9995) return fmt::format("{:.3g}", *value);
  return fixed(value, value.value_or(0) < 9.995 ? 2 : value.value_or(0) < 99.95 ? 1 : 0);
}

inline std::optional<double> number_of(const nlohmann::ordered_json& json, const char* field) {
  const auto at = json.find(field);
  return at != json.end() && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

inline std::string text_of(const nlohmann::ordered_json& json, const char* field) {
  const auto at = json.find(field);
  return at == json.end() || !at->is_string() ? "" : at->get<std::string>();
}

inline std::optional<double> ratio(std::optional<double> a, std::optional<double> b) {
  return a && b && *b > 0 ? std::optional(*a / *b) : std::nullopt;
}

inline std::string bytes_of(std::optional<double> value) {
  return value ? bytes_text(*value) : "-";
}

inline void add_column(Table& table, const std::string& title, bool numeric) {
  table.header.push_back(title);
  table.numeric.push_back(numeric);
}

}  // namespace tandem::tools
