#include "cli/calls/units.h"

#include <fmt/format.h>

#include <span>

namespace tandem::tools {
namespace {

/// `units`: each a thousand times the one before.
std::string scaled(double value, std::span<const char* const> units) {
  while (value >= 999.5 && units.size() > 1) {
    value /= 1000;
    units = units.subspan(1);
  }
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, units.front());
}

}  // namespace

std::string time_text(double us) {
  static constexpr const char* kUnits[] = {"ns", "us", "ms", "s"};
  return scaled(us * 1e3, kUnits);
}

std::string rate_text(double per_second) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  return scaled(per_second, kUnits);
}

}  // namespace tandem::tools
