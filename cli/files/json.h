// JSON from files that anyone may have written, and what messages show of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

/// Parses JSON of at most 32 levels in which no object has a name twice. Throws std::runtime_error
/// that begins with `place`, the file and where in it. `Json` is nlohmann's json, which finds a
/// name among many at once, or ordered_json, which keeps their order.
template <class Json>
Json parse_json(std::string_view text, const std::string& place);

/// Text as a message may show it: 80 characters at most, control characters escaped.
std::string shown(std::string_view text);

template <class Json>
std::string shown_json(const Json& value) {
  return shown(value.dump());
}

enum class Kind { kText, kNumber, kObject };

/// Refuses, beginning with `place`, the first of these fields that is neither absent, null nor of
/// the kind.
void require_kind(const nlohmann::ordered_json& object, const std::vector<const char*>& fields,
                  Kind kind, const std::string& place);

}  // namespace tandem::tools
