#include "cli/cases/cases.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "cli/cases/case_line.h"
#include "cli/cases/lengths.h"
#include "cli/files/files.h"
#include "ops/signature.h"

namespace tandem::tools {

/// Returns the text of cases/<op>.json, embedded at build time; null for an unknown op.
const char* embedded_cases(const std::string& op);

namespace {

const Words<DType> kDtypes = {{"bf16", DType::kBFloat16},
                              {"fp16", DType::kFloat16},
                              {"fp32", DType::kFloat32},
                              {"fp64", DType::kFloat64}};
const Words<DecayDistribution> kDistributions = {{"normal", DecayDistribution::kNormal},
                                                 {"normal_bench", DecayDistribution::kNormalBench},
                                                 {"strong", DecayDistribution::kStrong},
                                                 {"reset", DecayDistribution::kReset},
                                                 {"reset_half", DecayDistribution::kResetHalf},
                                                 {"reset_edges", DecayDistribution::kResetEdges},
                                                 {"all_reset", DecayDistribution::kAllReset},
                                                 {"minus20", DecayDistribution::kMinus20},
                                                 {"minus100", DecayDistribution::kMinus100},
                                                 {"huge", DecayDistribution::kHuge},
                                                 {"zero", DecayDistribution::kZero},
                                                 {"alternating", DecayDistribution::kAlternating},
                                                 {"positive", DecayDistribution::kPositive},
                                                 {"phases", DecayDistribution::kPhases}};
const Words<LengthRule::Distribution> kLengths = {
    {"equal", LengthRule::Distribution::kEqual},
    {"log_uniform", LengthRule::Distribution::kLogUniform}};
const Words<States> kStates = {{"none", States::kNone},
                               {"initial", States::kInitial},
                               {"final", States::kFinal},
                               {"both", States::kBoth},
                               {"in_place", States::kInPlace}};
const Words<bool> kGates = {{"silu", true}, {"none", false}};
const Words<bool> kDecayDtypes = {{"same", false}, {"fp32", true}};  // of gradients, tables too
const Words<Kept> kKept = {{"yes", Kept::kYes}, {"training", Kept::kTraining}, {"no", Kept::kNo}};
const Words<Norm> kNorms = {{"none", Norm::kNone}, {"same", Norm::kSame}, {"fp32", Norm::kFp32}};
const Words<bool> kRstds = {{"computed", false}, {"given", true}};
const Words<RowValues> kRowValues = {{"normal", RowValues::kNormal},
                                     {"extreme", RowValues::kExtreme},
                                     {"large", RowValues::kLarge},
                                     {"small", RowValues::kSmall}};
const Words<bool> kRopeLayouts = {{"rotate_half", false}, {"interleaved", true}};
const Words<bool> kGroupWeights = {{"repeated", false}, {"by_column", true}};
const Words<bool> kGated = {{"kept", false}, {"again", true}};
const Words<bool> kYesOrNo = {{"yes", true}, {"no", false}};
const Words<DType> kStateDtypes = {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}};
const Words<Strides> kStrides = {{"contiguous", Strides::kContiguous}, {"packed", Strides::kPacked},
                                 {"transposed", Strides::kTransposed}, {"padded", Strides::kPadded},
                                 {"misaligned", Strides::kMisaligned}, {"odd", Strides::kOdd},
                                 {"broadcast", Strides::kBroadcast}};

const CaseSchema& schema_of(const std::string& op) {
  for (const CaseSchema& schema : case_schemas()) {
    if (schema.op == op) return schema;
  }
  throw std::runtime_error("no cases for op " + op);
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void check_sequences(const Line& line, const Case& one) {
  if (!one.cu_seqlens) return;
  if (one.axis("B") != 1) line.refuse("cu_seqlens", "needs B = 1");
  const auto& offsets = *one.cu_seqlens;
  if (offsets.empty()) line.refuse("cu_seqlens", "must not be empty");
  if (!std::is_sorted(offsets.begin(), offsets.end()) || offsets.back() > one.axis("T")) {
    line.refuse("cu_seqlens", "must not decrease or pass T");
  }
}

std::vector<std::int32_t> parse_lengths(const Line& line, const Json& lengths, const Case& one) {
  line.only_fields(lengths, "lengths", {"distribution", "sequences", "smallest", "largest"});
  LengthRule rule;
  rule.distribution = line.word(line.required(lengths, "lengths", "distribution"),
                                "lengths.distribution", kLengths);
  const auto number = [&](const char* key) {
    return line.integer(line.required(lengths, "lengths", key), std::string("lengths.") + key, 1);
  };
  constexpr std::int64_t kMostSequences = 1 << 16;
  rule.sequences = number("sequences");
  if (rule.sequences > kMostSequences) {
    line.refuse("lengths.sequences",
                fmt::format("must be at most {}, got {}", kMostSequences, rule.sequences));
  }
  const std::int64_t tokens = one.axis("T");
  if (rule.distribution == LengthRule::Distribution::kLogUniform) {
    rule.smallest = static_cast<double>(number("smallest"));
    rule.largest = static_cast<double>(number("largest"));
    if (rule.largest < rule.smallest) line.refuse("lengths.largest", "must not be below smallest");
    if (tokens < rule.sequences) {
      line.refuse("lengths.sequences", fmt::format("must be at most T = {}", tokens));
    }
  } else {
    line.only_fields(lengths, "lengths", {"distribution", "sequences"});
  }
  return draw_cu_seqlens(rule, tokens, one.seed);
}

void parse_decay(const Line& line, const CaseSchema& schema, const Json& decay, Case& one) {
  line.only_fields(decay, "decay", {"kind", "distribution"});
  one.decay = line.word(line.required(decay, "decay", "kind"), "decay.kind", schema.decay_kinds);
  if (one.decay != DecayKind::kNone) {
    const Json& distribution = line.required(decay, "decay", "distribution");
    one.distribution = line.word(distribution, "decay.distribution", kDistributions);
  } else if (decay.contains("distribution")) {
    line.refuse("decay.distribution", "needs a decay kind other than none");
  }
}

std::vector<std::int32_t> parse_int32s(const Line& line, const Json& list,
                                       const std::string& field) {
  if (!list.is_array()) line.refuse(field, "must be a list of offsets");
  std::vector<std::int32_t> values;
  for (const Json& value : list) {
    values.push_back(static_cast<std::int32_t>(line.integer(value, field, 0)));
  }
  return values;
}

/// Reads the fields of attention and its like.
void parse_attention(const Line& line, const Json& object, Case& one) {
  const auto set_flag = [&](const char* field, bool& value) {
    if (object.contains(field)) value = line.word(object.at(field), field, kYesOrNo);
  };
  const auto set_window = [&](const char* field, std::optional<std::int64_t>& value) {
    if (object.contains(field)) value = line.integer(object.at(field), field, 0);
  };
  const auto set_list = [&](const char* field, std::optional<std::vector<std::int32_t>>& value) {
    if (object.contains(field)) value = parse_int32s(line, object.at(field), field);
  };
  set_flag("causal", one.causal);
  set_flag("log_sum_exp", one.log_sum_exp);
  set_window("window_left", one.window_left);
  set_window("window_right", one.window_right);
  set_list("cu_seqlens_k", one.cu_seqlens_k);
  set_list("lengths_k", one.lengths_k);
  if (object.contains("values")) {
    if (!object.at("values").is_string()) line.refuse("values", "must be a text");
    one.values = object.at("values");
  }
}

/// Reads the fields of ops with matrix products of rows.
void parse_product(const Line& line, const CaseSchema& schema, const Json& object, Case& one) {
  if (schema.has_field("segments")) {
    const Json& segments = line.required(object, "", "segments");
    if (!segments.is_array()) line.refuse("segments", "must be a list");
    for (const Json& segment : segments) {
      if (!segment.is_string()) line.refuse("segments", "must be a list of texts");
      one.segments.push_back(segment);
    }
  }
  if (object.contains("around")) {
    if (!object.at("around").is_number()) line.refuse("around", "must be a number");
    one.around = object.at("around").get<double>();
  }
  const auto set_text = [&](const char* field, std::string& text) {
    if (!object.contains(field)) return;
    if (!object.at(field).is_string()) line.refuse(field, "must be a text");
    text = object.at(field);
  };
  set_text("activation", one.activation);
  set_text("output_gate", one.output_gate);
  set_text("output_norm", one.output_norm);
  const auto set = [&](const char* field, const auto& words, auto& value) {
    if (object.contains(field)) value = line.word(object.at(field), field, words);
  };
  set("norm", kNorms, one.norm);
  set("rstd", kRstds, one.rstd_given);
  if (object.contains("eps")) {
    if (!object.at("eps").is_number()) line.refuse("eps", "must be a number");
    if (one.rstd_given) line.refuse("eps", "cannot be given beside rstd");
    one.eps = object.at("eps").get<double>();
  }
  if (object.contains("head_eps")) {
    if (!object.at("head_eps").is_number()) line.refuse("head_eps", "must be a number");
    one.head_eps = object.at("head_eps").get<double>();
  }
  set_text("rope", one.rope);
  if (object.contains("rope_width")) {
    one.rope_width = line.integer(object.at("rope_width"), "rope_width", 2);
  }
  set("rope_layout", kRopeLayouts, one.rope_interleaved);
  set("rope_tables", kDecayDtypes, one.rope_fp32);
  set("rows", kRowValues, one.rows);
  set("gradients", kDecayDtypes, one.fp32_gradients);
  set("accumulate", kYesOrNo, one.accumulate);
  set("group_norm", kNorms, one.group_norm);
  if (object.contains("group_width")) {
    one.group_width = line.integer(object.at("group_width"), "group_width", 1);
  }
  set("group_weight", kGroupWeights, one.group_weight_by_column);
  set("behind_gate", kYesOrNo, one.behind_gate);
  set("bias", kNorms, one.bias);
  set("residual", kYesOrNo, one.residual);
  set("sum", kYesOrNo, one.sum);
  set("gated", kGated, one.gated_again);
}

Case parse_case(const Line& line, const std::string& op, const Json& object) {
  const CaseSchema& schema = schema_of(op);
  std::vector<std::string> known = {"name",    "directions", "axes", "dtype",
                                    "strides", "tags",       "seed"};
  if (schema.is_recurrence()) known = joined(known, {"decay", "states", "cu_seqlens", "lengths"});
  line.only_fields(object, "", joined(known, schema.fields));
  Case one;
  one.name = object.at("name");
  if (one.name.find_first_of("{}") != std::string::npos) {
    line.refuse("name", "has a placeholder for a field that is not a list: " + shown(one.name));
  }
  if (shown(one.name) != one.name) {
    line.refuse("name", "must have at most 80 characters, all printable");
  }
  one.directions = {"forward"};
  if (object.contains("directions")) {
    one.directions = line.words(object.at("directions"), "directions", direction_names());
    if (one.directions.empty()) line.refuse("directions", "must not be empty");
  }
  const Json& axes = line.required(object, "", "axes");
  line.only_fields(axes, "axes", joined(schema.axes, schema.optional_axes));
  if (one.directions == std::vector<std::string>{"step"}) one.axes["T"] = 1;
  for (const std::string& axis : schema.axes) {
    if (one.axes.count(axis) == 0) line.required(axes, "axes", axis);
  }
  for (const auto& [axis, value] : axes.items()) {
    one.axes[axis] = line.integer(value, "axes." + axis, may_be_empty(axis) ? 0 : 1);
  }
  const Json& dtypes = line.required(object, "", "dtype");
  if (!dtypes.is_array() || dtypes.empty()) line.refuse("dtype", "must be a list of dtypes");
  for (const Json& dtype : dtypes) one.dtypes.push_back(line.word(dtype, "dtype", kDtypes));

  if (schema.is_recurrence()) parse_decay(line, schema, line.required(object, "", "decay"), one);
  if (object.contains("decay_dtype")) {
    one.fp32_decay = line.word(object.at("decay_dtype"), "decay_dtype", kDecayDtypes);
  }
  if (object.contains("gate")) one.gate = line.word(object.at("gate"), "gate", kGates);
  if (object.contains("states")) one.states = line.word(object.at("states"), "states", kStates);
  if (object.contains("state_dtype")) {
    one.state_dtype = line.word(object.at("state_dtype"), "state_dtype", kStateDtypes);
  }
  if (object.contains("saved_states")) {
    one.saved_states = line.word(object.at("saved_states"), "saved_states", kYesOrNo);
  }
  if (object.contains("weight")) {
    one.fp32_weight = line.word(object.at("weight"), "weight", kDecayDtypes);
  }
  if (object.contains("kept")) one.kept = line.word(object.at("kept"), "kept", kKept);
  if (object.contains("strides")) {
    one.strides = line.word(object.at("strides"), "strides", kStrides);
  }
  if (object.contains("scale")) {
    if (!object.at("scale").is_number()) line.refuse("scale", "must be a number");
    one.scale = object.at("scale").get<double>();
  }
  if (object.contains("cu_seqlens")) {
    one.cu_seqlens = parse_int32s(line, object.at("cu_seqlens"), "cu_seqlens");
  }
  for (std::string& tag : line.words(line.required(object, "", "tags"), "tags", tag_names())) {
    one.tags.insert(std::move(tag));
  }
  if (object.contains("seed")) {
    one.seed = static_cast<std::uint64_t>(line.integer(object.at("seed"), "seed", 0));
  }
  if (object.contains("lengths")) {
    if (one.cu_seqlens) line.refuse("lengths", "cannot be given beside cu_seqlens");
    one.cu_seqlens = parse_lengths(line, object.at("lengths"), one);
  }
  if (!schema.is_recurrence()) parse_product(line, schema, object, one);
  if (schema.has_field("causal")) parse_attention(line, object, one);
  if (schema.check != nullptr) schema.check(line, one);
  check_sequences(line, one);
  return one;
}

template <class Value>
const char* word_for(const Words<Value>& words, Value value) {
  const auto found = std::find_if(words.begin(), words.end(),
                                  [&](const auto& word) { return word.second == value; });
  return found->first;
}

/// Writes the fields that parse_case reads.
Json to_json(const CaseSchema& schema, const Case& one) {
  const auto has = [&](const char* field) { return schema.has_field(field); };
  Json object;
  object["name"] = one.name;
  object["directions"] = one.directions;
  for (const std::string& axis : joined(schema.axes, schema.optional_axes)) {
    object["axes"][axis] = one.axis(axis);
  }
  for (const DType dtype : one.dtypes) object["dtype"].push_back(word_for(kDtypes, dtype));
  if (schema.is_recurrence()) {
    object["decay"]["kind"] = word_for(schema.decay_kinds, one.decay);
  }
  if (one.decay != DecayKind::kNone) {
    object["decay"]["distribution"] = word_for(kDistributions, one.distribution);
  }
  if (has("decay_dtype")) object["decay_dtype"] = word_for(kDecayDtypes, one.fp32_decay);
  if (has("gate")) object["gate"] = word_for(kGates, one.gate);
  if (schema.is_recurrence() || has("states")) object["states"] = word_for(kStates, one.states);
  if (has("weight")) object["weight"] = word_for(kDecayDtypes, one.fp32_weight);
  if (has("state_dtype")) object["state_dtype"] = word_for(kStateDtypes, one.state_dtype);
  if (has("saved_states")) object["saved_states"] = word_for(kYesOrNo, one.saved_states);
  if (has("kept")) object["kept"] = word_for(kKept, one.kept);
  object["strides"] = word_for(kStrides, one.strides);
  if (one.scale) object["scale"] = *one.scale;
  if (one.cu_seqlens) object["cu_seqlens"] = *one.cu_seqlens;
  if (has("segments")) object["segments"] = one.segments;
  if (has("activation")) object["activation"] = one.activation;
  if (one.around) object["around"] = *one.around;
  if (has("norm")) object["norm"] = word_for(kNorms, one.norm);
  if (one.eps) object["eps"] = *one.eps;
  if (has("rstd")) object["rstd"] = word_for(kRstds, one.rstd_given);
  if (one.head_eps) object["head_eps"] = *one.head_eps;
  if (has("rope")) object["rope"] = one.rope;
  if (one.rope_width != 0) object["rope_width"] = one.rope_width;
  if (has("rope_layout")) object["rope_layout"] = word_for(kRopeLayouts, one.rope_interleaved);
  if (has("rope_tables")) object["rope_tables"] = word_for(kDecayDtypes, one.rope_fp32);
  if (has("rows")) object["rows"] = word_for(kRowValues, one.rows);
  if (has("gradients")) object["gradients"] = word_for(kDecayDtypes, one.fp32_gradients);
  if (has("accumulate")) object["accumulate"] = word_for(kYesOrNo, one.accumulate);
  if (has("output_gate")) object["output_gate"] = one.output_gate;
  if (has("group_norm")) object["group_norm"] = word_for(kNorms, one.group_norm);
  if (one.group_width != 0) object["group_width"] = one.group_width;
  if (has("group_weight")) {
    object["group_weight"] = word_for(kGroupWeights, one.group_weight_by_column);
  }
  if (has("behind_gate")) object["behind_gate"] = word_for(kYesOrNo, one.behind_gate);
  if (has("bias")) object["bias"] = word_for(kNorms, one.bias);
  if (has("residual")) object["residual"] = word_for(kYesOrNo, one.residual);
  if (has("output_norm")) object["output_norm"] = one.output_norm;
  if (has("sum")) object["sum"] = word_for(kYesOrNo, one.sum);
  if (has("gated")) object["gated"] = word_for(kGated, one.gated_again);
  if (has("causal")) object["causal"] = word_for(kYesOrNo, one.causal);
  if (one.window_left) object["window_left"] = *one.window_left;
  if (one.window_right) object["window_right"] = *one.window_right;
  if (one.cu_seqlens_k) object["cu_seqlens_k"] = *one.cu_seqlens_k;
  if (one.lengths_k) object["lengths_k"] = *one.lengths_k;
  if (has("log_sum_exp")) object["log_sum_exp"] = word_for(kYesOrNo, one.log_sum_exp);
  if (has("values")) object["values"] = one.values;
  object["tags"] = one.tags;
  object["seed"] = one.seed;
  return object;
}

/// Whether one of the globs, a list by comma, matches the name.
bool matches_one(const std::string& globs, const std::string& name) {
  std::istringstream list(globs);
  for (std::string glob; std::getline(list, glob, ',');) {
    if (fnmatch(glob.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

}  // namespace

std::int64_t token_count(const Case& one) {
  return one.cu_seqlens ? one.cu_seqlens->back() - one.cu_seqlens->front()
                        : one.axis("B") * one.axis("T");
}

const std::vector<std::string>& direction_names() {
  static const std::vector<std::string> names = {"forward", "backward", "forward_backward",
                                                 "step",    "state",    "state_backward",
                                                 "decay",   "carry",    "carry_backward"};
  return names;
}

const std::vector<std::string>& tag_names() {
  static const std::vector<std::string> names = {"check", "bench", "front",     "large",
                                                 "huge",  "host",  "sanitizer", "random"};
  return names;
}

std::vector<Case> parse_cases(const std::string& op, const std::string& json,
                              const std::string& file) {
  constexpr std::size_t kMostCases = 10000;  // of one line
  const Json table = parse_json<Json>(json, file);
  if (!table.is_array()) throw std::runtime_error(file + ": must be a list of cases");
  std::vector<Case> cases;
  std::set<std::string> names;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const Json& object = table[i];
    Line line{file, fmt::format("number {}", i)};
    if (!object.is_object()) line.refuse("", "must be an object");
    if (!line.required(object, "", "name").is_string()) line.refuse("name", "must be a string");
    line.name = object.at("name");
    const std::size_t before = cases.size();
    expand(line, object, [&](const Json& expanded) {
      if (cases.size() - before == kMostCases) {
        line.refuse("", fmt::format("stands for more than {} cases", kMostCases));
      }
      cases.push_back(parse_case(line, op, expanded));
      if (!names.insert(cases.back().name).second) {
        line.refuse("name", shown(cases.back().name) + " appears twice");
      }
    });
  }
  return cases;
}

std::string write_cases(const std::string& op, const std::vector<Case>& cases) {
  const CaseSchema& schema = schema_of(op);
  std::vector<std::string> lines;
  lines.reserve(cases.size());
  for (const Case& one : cases) lines.push_back(to_json(schema, one).dump());
  return fmt::format("[{}]\n", fmt::join(lines, ",\n"));
}

std::vector<Case> load_cases(const std::string& op, const std::string& file) {
  if (file.empty()) {
    const char* text = embedded_cases(op);
    if (text == nullptr) throw std::runtime_error("no cases for op " + op);
    return parse_cases(op, text, "cases/" + op + ".json");
  }
  return parse_cases(op, read_text(file), file);
}

std::vector<Case> select_cases(std::vector<Case> cases, const std::string& globs,
                               const std::string& tag) {
  std::erase_if(cases, [&](const Case& one) {
    return (!globs.empty() && !matches_one(globs, one.name)) ||
           (!tag.empty() && !one.tagged(tag)) || (one.tagged("huge") && tag != "huge");
  });
  return cases;
}

}  // namespace tandem::tools
