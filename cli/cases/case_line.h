// One object of a case table while it is read: fields are taken out of it, lists in it expanded.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/files/json.h"

namespace tandem::tools {

using Json = nlohmann::ordered_json;

template <class Value>
using Words = std::vector<std::pair<const char*, Value>>;

/// A line of a case table. Errors name the file, the case and the field.
struct Line {
  std::string file;
  std::string name;

  /// "strides.q", and "q" in the case itself, where `where` is "".
  static std::string path_of(const std::string& where, const std::string& key) {
    return where.empty() ? key : fmt::format("{}.{}", where, key);
  }

  [[noreturn]] void refuse(const std::string& field, const std::string& text) const {
    throw std::runtime_error(fmt::format("{}: case {}: {}{}", file, shown(name),
                                         field.empty() ? "" : shown(field) + ": ", text));
  }

  void only_fields(const Json& object, const std::string& where,
                   const std::vector<std::string>& known) const {
    if (!object.is_object()) refuse(where, "must be an object");
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        refuse(path_of(where, key),
               fmt::format("unknown field (known: {})", fmt::join(known, ", ")));
      }
    }
  }

  const Json& required(const Json& object, const std::string& where, const std::string& key) const {
    if (!object.contains(key)) refuse(path_of(where, key), "is missing");
    return object.at(key);
  }

  template <class Value>
  Value word(const Json& value, const std::string& field, const Words<Value>& words) const {
    std::vector<std::string> known;
    for (const auto& [text, meaning] : words) {
      if (value.is_string() && value.get<std::string>() == text) return meaning;
      known.push_back(text);
    }
    refuse(field,
           fmt::format("must be one of {}, got {}", fmt::join(known, ", "), shown_json(value)));
  }

  /// Reads a list of words, none twice.
  std::vector<std::string> words(const Json& list, const std::string& field,
                                 const std::vector<std::string>& known) const {
    if (!list.is_array()) refuse(field, "must be a list");
    std::vector<std::string> found;
    const auto holds = [](const std::vector<std::string>& words, const std::string& word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    for (const Json& item : list) {
      const std::string word = item.is_string() ? item.get<std::string>() : "";
      if (!holds(known, word)) {
        refuse(field,
               fmt::format("must be among {}, got {}", fmt::join(known, ", "), shown_json(item)));
      }
      if (holds(found, word)) refuse(field, "names " + shown_json(item) + " twice");
      found.push_back(word);
    }
    return found;
  }

  std::int64_t integer(const Json& value, const std::string& field, std::int64_t least) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    if (!value.is_number_integer() || value.get<std::int64_t>() < least ||
        value.get<std::int64_t>() >= kMost) {
      refuse(field,
             fmt::format("must be an integer in [{},2^31), got {}", least, shown_json(value)));
    }
    return value.get<std::int64_t>();
  }
};

/// Calls `add` on each single case that the object stands for: axes written "1..130" become lists,
/// and lists the cross product.
void expand(const Line& line, Json object, const std::function<void(const Json&)>& add);

}  // namespace tandem::tools
