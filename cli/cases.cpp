#include "cases.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tandem::tools {

/// The text of cases/<op>.json, embedded at build time; null for an unknown op.
const char* embedded_cases(const std::string& op);

namespace {

using Json = nlohmann::ordered_json;

template <class Value>
using Words = std::vector<std::pair<const char*, Value>>;

const Words<DType> kDtypes = {
    {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};
const Words<DecayKind> kKinds = {{"none", DecayKind::kNone},
                                 {"constant", DecayKind::kConstant},
                                 {"per_token", DecayKind::kPerToken}};
const Words<DecayDistribution> kDistributions = {{"normal", DecayDistribution::kNormal},
                                                 {"normal_bench", DecayDistribution::kNormalBench},
                                                 {"strong", DecayDistribution::kStrong},
                                                 {"reset", DecayDistribution::kReset},
                                                 {"reset_edges", DecayDistribution::kResetEdges},
                                                 {"all_reset", DecayDistribution::kAllReset},
                                                 {"minus20", DecayDistribution::kMinus20},
                                                 {"huge", DecayDistribution::kHuge},
                                                 {"zero", DecayDistribution::kZero},
                                                 {"alternating", DecayDistribution::kAlternating},
                                                 {"positive", DecayDistribution::kPositive}};
const Words<States> kStates = {{"none", States::kNone},
                               {"initial", States::kInitial},
                               {"final", States::kFinal},
                               {"both", States::kBoth},
                               {"in_place", States::kInPlace}};
const Words<Strides> kStrides = {{"contiguous", Strides::kContiguous}, {"packed", Strides::kPacked},
                                 {"transposed", Strides::kTransposed}, {"padded", Strides::kPadded},
                                 {"misaligned", Strides::kMisaligned}, {"odd", Strides::kOdd},
                                 {"broadcast", Strides::kBroadcast}};

/// One object of the file while it is read: errors name the file, the case and the field.
struct Line {
  std::string file;
  std::string name;

  [[noreturn]] void refuse(const std::string& field, const std::string& text) const {
    throw std::runtime_error(fmt::format("{}: case {}: {}: {}", file, name, field, text));
  }

  void only_fields(const Json& object, const std::string& where,
                   const std::vector<std::string>& known) const {
    if (!object.is_object()) refuse(where, "must be an object");
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        refuse(where.empty() ? key : where + "." + key,
               fmt::format("unknown field (known: {})", fmt::join(known, ", ")));
      }
    }
  }

  const Json& required(const Json& object, const std::string& where, const std::string& key) const {
    if (!object.contains(key)) refuse(where.empty() ? key : where + "." + key, "is missing");
    return object.at(key);
  }

  template <class Value>
  Value word(const Json& value, const std::string& field, const Words<Value>& words) const {
    std::vector<std::string> known;
    for (const auto& [text, meaning] : words) {
      if (value.is_string() && value.get<std::string>() == text) return meaning;
      known.push_back(text);
    }
    refuse(field, fmt::format("must be one of {}, got {}", fmt::join(known, ", "), value.dump()));
  }

  /// A list of words, none twice.
  std::vector<std::string> words(const Json& list, const std::string& field,
                                 const std::vector<std::string>& known) const {
    if (!list.is_array()) refuse(field, "must be a list");
    std::vector<std::string> found;
    for (const Json& word : list) {
      if (!word.is_string() || std::find(known.begin(), known.end(), word) == known.end()) {
        refuse(field, fmt::format("must be among {}, got {}", fmt::join(known, ", "), word.dump()));
      }
      if (std::find(found.begin(), found.end(), word) != found.end()) {
        refuse(field, "names " + word.dump() + " twice");
      }
      found.push_back(word);
    }
    return found;
  }

  std::int64_t integer(const Json& value, const std::string& field, std::int64_t least) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    if (!value.is_number_integer() || value.get<std::int64_t>() < least ||
        value.get<std::int64_t>() >= kMost) {
      refuse(field, fmt::format("must be an integer in [{},2^31), got {}", least, value.dump()));
    }
    return value.get<std::int64_t>();
  }
};

/// The value as it appears in a name: T=64 -> "64", "normal" -> "normal".
std::string name_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Expands the first list among the fields that may be lists, then the rest; calls `add` on each
/// result.
template <class Add>
void expand(const Line& line, const Json& object, const Add& add) {
  std::vector<std::pair<std::string, Json::json_pointer>> fields;
  if (object.contains("axes") && object.at("axes").is_object()) {
    for (const auto& [axis, value] : object.at("axes").items()) {
      fields.emplace_back(axis, Json::json_pointer("/axes") / axis);
    }
  }
  fields.emplace_back("kind", Json::json_pointer("/decay/kind"));
  fields.emplace_back("distribution", Json::json_pointer("/decay/distribution"));
  for (const std::string key : {"states", "strides", "scale"}) {
    fields.emplace_back(key, Json::json_pointer("/" + key));
  }
  for (const auto& [key, pointer] : fields) {
    if (!object.contains(pointer) || !object.at(pointer).is_array()) continue;
    if (object.at(pointer).empty()) line.refuse(key, "must not be an empty list");
    for (const Json& value : object.at(pointer)) {
      Json one = object;
      one[pointer] = value;
      std::string name = one.at("name");
      const std::string placeholder = "{" + key + "}";
      const auto at = name.find(placeholder);
      if (at == std::string::npos) {
        line.refuse(key, "is a list, so the name must contain " + placeholder);
      }
      one["name"] = name.replace(at, placeholder.size(), name_text(value));
      expand(line, one, add);
    }
    return;
  }
  add(object);
}

void check_gla(const Line& line, Case& one) {
  one.axes.emplace("V", one.axis("K"));
  one.axes.emplace("HQ", one.axis("H"));
  if (one.axis("H") % one.axis("HQ") != 0) line.refuse("axes.HQ", "must divide H");
  if (one.has_direction("step") && one.axis("T") != 1) {
    line.refuse("axes.T", fmt::format("a step is of one token, got {}", one.axis("T")));
  }
  if (!one.cu_seqlens) return;
  if (one.axis("B") != 1) line.refuse("cu_seqlens", "needs B = 1");
  const auto& offsets = *one.cu_seqlens;
  if (offsets.empty()) line.refuse("cu_seqlens", "must not be empty");
  if (!std::is_sorted(offsets.begin(), offsets.end()) || offsets.back() > one.axis("T")) {
    line.refuse("cu_seqlens", "must not decrease or pass T");
  }
}

Case parse_case(const Line& line, const std::string& op, const Json& object) {
  line.only_fields(object, "",
                   {"name", "directions", "axes", "dtype", "decay", "states", "cu_seqlens",
                    "strides", "scale", "tags", "seed"});
  Case one;
  one.name = object.at("name");
  if (one.name.find_first_of("{}") != std::string::npos) {
    line.refuse("name", "has a placeholder for a field that is not a list: " + one.name);
  }
  one.directions = {"forward"};
  if (object.contains("directions")) {
    one.directions = line.words(object.at("directions"), "directions", direction_names());
    if (one.directions.empty()) line.refuse("directions", "must not be empty");
  }
  const Json& axes = line.required(object, "", "axes");
  line.only_fields(axes, "axes", {"B", "T", "H", "HQ", "K", "V"});
  if (one.directions == std::vector<std::string>{"step"}) one.axes["T"] = 1;
  for (const char* axis : {"B", "T", "H", "K"}) {
    if (one.axes.count(axis) == 0) line.required(axes, "axes", axis);
  }
  for (const auto& [axis, value] : axes.items()) {
    one.axes[axis] = line.integer(value, "axes." + axis, axis == "B" || axis == "T" ? 0 : 1);
  }
  const Json& dtypes = line.required(object, "", "dtype");
  if (!dtypes.is_array() || dtypes.empty()) line.refuse("dtype", "must be a list of dtypes");
  for (const Json& dtype : dtypes) one.dtypes.push_back(line.word(dtype, "dtype", kDtypes));

  const Json& decay = line.required(object, "", "decay");
  line.only_fields(decay, "decay", {"kind", "distribution"});
  one.decay = line.word(line.required(decay, "decay", "kind"), "decay.kind", kKinds);
  if (one.decay != DecayKind::kNone) {
    const Json& distribution = line.required(decay, "decay", "distribution");
    one.distribution = line.word(distribution, "decay.distribution", kDistributions);
  } else if (decay.contains("distribution")) {
    line.refuse("decay.distribution", "needs a decay kind other than none");
  }
  if (object.contains("states")) one.states = line.word(object.at("states"), "states", kStates);
  if (object.contains("strides")) {
    one.strides = line.word(object.at("strides"), "strides", kStrides);
  }
  if (object.contains("scale")) {
    if (!object.at("scale").is_number()) line.refuse("scale", "must be a number");
    one.scale = object.at("scale").get<double>();
  }
  if (object.contains("cu_seqlens")) {
    if (!object.at("cu_seqlens").is_array()) line.refuse("cu_seqlens", "must be a list of offsets");
    one.cu_seqlens.emplace();
    for (const Json& offset : object.at("cu_seqlens")) {
      one.cu_seqlens->push_back(static_cast<std::int32_t>(line.integer(offset, "cu_seqlens", 0)));
    }
  }
  for (std::string& tag : line.words(line.required(object, "", "tags"), "tags", tag_names())) {
    one.tags.insert(std::move(tag));
  }
  if (object.contains("seed")) {
    one.seed = static_cast<std::uint64_t>(line.integer(object.at("seed"), "seed", 0));
  }
  if (op == "gla") check_gla(line, one);
  return one;
}

}  // namespace

const std::vector<std::string>& direction_names() {
  static const std::vector<std::string> names = {"forward", "backward", "forward_backward", "step",
                                                 "state"};
  return names;
}

const std::vector<std::string>& tag_names() {
  static const std::vector<std::string> names = {"check", "bench", "large", "sanitizer", "later"};
  return names;
}

std::vector<Case> parse_cases(const std::string& op, const std::string& json,
                              const std::string& file) {
  Json table;
  try {
    table = Json::parse(json);
  } catch (const Json::parse_error& error) {
    throw std::runtime_error(fmt::format("{}: not valid JSON: {}", file, error.what()));
  }
  if (!table.is_array()) throw std::runtime_error(file + ": must be a list of cases");
  std::vector<Case> cases;
  std::set<std::string> names;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Json& object = table[i];
    Line line{file, fmt::format("number {}", i)};
    if (!object.is_object()) line.refuse("", "must be an object");
    if (!line.required(object, "", "name").is_string()) line.refuse("name", "must be a string");
    line.name = object.at("name");
    expand(line, object, [&](const Json& expanded) {
      cases.push_back(parse_case(line, op, expanded));
      if (!names.insert(cases.back().name).second) {
        line.refuse("name", cases.back().name + " appears twice");
      }
    });
  }
  return cases;
}

std::vector<Case> load_cases(const std::string& op, const std::string& file) {
  if (file.empty()) {
    const char* text = embedded_cases(op);
    if (text == nullptr) throw std::runtime_error("no cases for op " + op);
    return parse_cases(op, text, "cases/" + op + ".json");
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error(file + ": cannot be opened");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return parse_cases(op, text, file);
}

std::vector<Case> select_cases(std::vector<Case> cases, const std::string& glob,
                               const std::string& tag) {
  std::erase_if(cases, [&](const Case& one) {
    return (!glob.empty() && fnmatch(glob.c_str(), one.name.c_str(), 0) != 0) ||
           (!tag.empty() && !one.tagged(tag));
  });
  return cases;
}

}  // namespace tandem::tools
