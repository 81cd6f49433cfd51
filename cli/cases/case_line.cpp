#include "cli/cases/case_line.h"

#include <charconv>
#include <string_view>

namespace tandem::tools {
namespace {

/// Returns the value as it appears in a name: T=64 -> "64", "normal" -> "normal".
std::string name_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Returns "1..130" as [1,2,...,130], any other value as it is.
Json spread(const Line& line, const std::string& axis, const Json& value) {
  if (!value.is_string()) return value;
  const std::string text = value;
  const std::size_t dots = text.find("..");
  std::int64_t first = 0, last = -1;
  const auto number = [&](std::string_view part, std::int64_t& into) {
    const auto [end, error] = std::from_chars(part.begin(), part.end(), into);
    return error == std::errc() && end == part.end() && !part.empty();
  };
  const std::string_view view = text;
  constexpr std::int64_t kLongest = 10000;
  if (dots == std::string::npos || !number(view.substr(0, dots), first) ||
      !number(view.substr(dots + 2), last) || first < 0 || last < first ||
      last - first >= kLongest) {
    line.refuse("axes." + axis,
                "must be an integer, a list of them or a range such as \"1..130\", got " +
                    shown_json(value));
  }
  Json list = Json::array();
  for (std::int64_t i = first; i <= last; ++i) list.push_back(i);
  return list;
}

/// Expands the first list among the fields that may be lists, then the rest; calls `add` on each
/// result.
void expand_lists(const Line& line, const Json& object,
                  const std::function<void(const Json&)>& add) {
  std::vector<std::pair<std::string, Json::json_pointer>> fields;
  if (object.contains("axes") && object.at("axes").is_object()) {
    for (const auto& [axis, value] : object.at("axes").items()) {
      fields.emplace_back(axis, Json::json_pointer("/axes") / axis);
    }
  }
  fields.emplace_back("kind", Json::json_pointer("/decay/kind"));
  fields.emplace_back("distribution", Json::json_pointer("/decay/distribution"));
  for (const std::string key :
       {"decay_dtype", "gate",        "states",       "state_dtype", "strides",     "scale",
        "activation",  "around",      "norm",         "eps",         "head_eps",    "rope",
        "rope_width",  "rope_layout", "rope_tables",  "rstd",        "rows",        "kept",
        "gradients",   "accumulate",  "output_gate",  "group_norm",  "group_width", "group_weight",
        "behind_gate", "bias",        "residual",     "output_norm", "sum",         "gated",
        "causal",      "window_left", "window_right", "log_sum_exp", "values",      "weight",
        "saved_states"}) {
    fields.emplace_back(key, Json::json_pointer("/" + key));
  }
  for (const auto& [key, pointer] : fields) {
    if (!object.contains(pointer) || !object.at(pointer).is_array()) continue;
    if (object.at(pointer).empty()) line.refuse(key, "must not be an empty list");
    Json one = object;
    const Json values = std::exchange(one[pointer], nullptr);  // not copied with every case
    for (const Json& value : values) {
      one[pointer] = value;
      std::string name = object.at("name");
      const std::string placeholder = "{" + key + "}";
      const auto at = name.find(placeholder);
      if (at == std::string::npos) {
        line.refuse(key, "is a list, so the name must contain " + shown(placeholder));
      }
      one["name"] = name.replace(at, placeholder.size(), name_text(value));
      expand_lists(line, one, add);
    }
    return;
  }
  add(object);
}

}  // namespace

void expand(const Line& line, Json object, const std::function<void(const Json&)>& add) {
  if (object.contains("axes") && object.at("axes").is_object()) {
    for (auto& [axis, value] : object.at("axes").items()) value = spread(line, axis, value);
  }
  expand_lists(line, object, add);
}

}  // namespace tandem::tools
