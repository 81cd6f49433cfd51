#include "binding.h"

#include <algorithm>
#include <string_view>

namespace tandem::extension {
namespace {

bool is_number(const Argument& argument) { return argument.row->number || !argument.flag.empty(); }

/// Whether the caller says if the output is fp32.
bool has_choice_of_dtype(const Parameter& row) {
  return row.role == Role::kOutput && row.element == Element::kSameOrFp32 &&
         row.dtype_of == nullptr;
}

bool is_result(const Parameter& row) {
  return row.role == Role::kOutput || row.role == Role::kGradient;
}

const char* role_name(Role role) {
  switch (role) {
    case Role::kInput: return "input";
    case Role::kOutput: return "output";
    case Role::kInPlace: return "in_place";
    case Role::kGradient: return "gradient";
  }
  return "";
}

const char* dtype_rule(Element element) {
  switch (element) {
    case Element::kMatrix: return "matrix";
    case Element::kAny: return "any";
    case Element::kSame: return "same";
    case Element::kSameOrFp32: return "same_or_fp32";
    case Element::kFp32: return "fp32";
    case Element::kFp32OrBf16: return "fp32_or_bf16";
    case Element::kOffsets: return "offsets";
    case Element::kPositions: return "positions";
  }
  return "";
}

// Names are identifiers, axes letters and commas: nothing to escape.
std::string quoted(const char* text) {
  return text == nullptr ? "null" : '"' + std::string(text) + '"';
}

template <class Items, class Text>
std::string json_list(const Items& items, const Text& text) {
  std::string list;
  for (const auto& item : items) list += (list.empty() ? "" : ",") + text(item);
  return "[" + list + "]";
}

std::string json_of(const Binding& binding, const Parameter& row) {
  const char *flag = nullptr, *fp32_flag = nullptr;
  for (const Result& result : binding.results) {
    for (const Result::Choice& choice : result.choices) {
      if (choice.row != &row) continue;
      if (result.flag >= 0) flag = binding.arguments[result.flag].flag.c_str();
      if (result.fp32_flag >= 0) fp32_flag = binding.arguments[result.fp32_flag].flag.c_str();
    }
  }
  return "{\"name\":" + quoted(row.name) +
         ",\"kind\":" + (row.number ? "\"number\"" : "\"tensor\"") +
         ",\"role\":" + quoted(role_name(row.role)) +
         ",\"optional\":" + (row.optional ? "true" : "false") +
         ",\"axes\":" + quoted(row.axes_text) + ",\"dtype\":" + quoted(dtype_rule(row.element)) +
         ",\"instead_of\":" + quoted(row.instead_of) + ",\"source\":" + quoted(row.source) +
         ",\"made_with\":" + quoted(row.made_with) + ",\"kept_as\":" + quoted(row.kept_as) +
         ",\"dtype_of\":" + quoted(row.dtype_of) + ",\"flag\":" + quoted(flag) +
         ",\"fp32_flag\":" + quoted(fp32_flag) + "}";
}

std::string json_of(const Binding& binding) {
  const auto result = [](const Result& item) { return quoted(item.row().name); };
  const auto argument = [](const Argument& item) { return quoted(item.name().c_str()); };
  const auto row = [&](const Parameter& item) { return json_of(binding, item); };
  return "{\"name\":" + quoted(binding.signature->name()) +
         ",\"is_packed\":" + (binding.is_packed() ? "true" : "false") +
         ",\"arguments\":" + json_list(binding.arguments, argument) +
         ",\"results\":" + json_list(binding.results, result) +
         ",\"parameters\":" + json_list(binding.signature->parameters(), row) + "}";
}

}  // namespace

Binding::Binding(const Signature& signature)
    : signature(&signature), is_step(std::string_view(signature.name()).ends_with("_step")) {
  std::vector<Argument> wanted;
  for (const Parameter& row : signature.parameters()) {
    if (row.is_flag || row.cpp_alone) continue;
    if (!is_result(row)) {
      arguments.push_back({&row, ""});
      continue;
    }
    const Parameter* source = row.source == nullptr ? nullptr : signature.find(row.source);
    if (source != nullptr && source->instead_of != nullptr) {
      const auto other = std::find_if(results.begin(), results.end(), [&](const Result& result) {
        const Parameter* input = result.choices.front().source;
        return input != nullptr && std::string_view(input->name) == source->instead_of;
      });
      other->choices.push_back({&row, source});
      continue;
    }
    if (row.role == Role::kGradient) {
      wanted.push_back({&row, "wants_" + std::string(row.name)});
    } else if (row.optional && row.made_with == nullptr) {
      arguments.push_back({&row, "output_" + std::string(row.name)});
    }
    if (has_choice_of_dtype(row)) arguments.push_back({&row, "fp32_" + std::string(row.name)});
    results.push_back({{{&row, source}}});
  }
  arguments.insert(arguments.end(), wanted.begin(), wanted.end());
  std::stable_partition(results.begin(), results.end(),
                        [](const Result& result) { return !result.row().optional; });
  for (Result& result : results) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].row != &result.row()) continue;
      const bool is_dtype = arguments[i].flag.starts_with("fp32_");
      (is_dtype ? result.fp32_flag : result.flag) = static_cast<int>(i);
    }
  }
}

std::size_t Binding::passed() const {
  if (!is_packed()) return arguments.size();
  return arguments.size() - std::ranges::count_if(arguments, is_number) + 2;
}

std::string Binding::schema() const {
  std::string taken, returned;
  for (const Argument& argument : arguments) {
    const Parameter& row = *argument.row;
    if (is_packed() && is_number(argument)) continue;
    const char* type = !argument.flag.empty()       ? "bool "
                       : row.number                 ? "float? "
                       : row.role == Role::kInPlace ? "Tensor(a!) "
                       : row.optional               ? "Tensor? "
                                                    : "Tensor ";
    taken += (taken.empty() ? "" : ", ") + (type + argument.name());
  }
  if (is_packed()) taken += ", int[] given, float[] numbers";
  for (const Result& result : results) {
    returned +=
        (returned.empty() ? "" : ", ") + std::string(result.row().optional ? "Tensor?" : "Tensor");
  }
  if (results.size() != 1) returned = "(" + returned + ")";
  return std::string(signature->name()) + "(" + taken + ") -> " + returned;
}

const std::vector<Binding>& bindings() {
  static const std::vector<Binding> all = [] {
    std::vector<Binding> made;
    for (const Signature* signature : signatures()) made.emplace_back(*signature);
    return made;
  }();
  return all;
}

std::string tables_as_json() {
  return json_list(bindings(), [](const Binding& binding) { return json_of(binding); });
}

}  // namespace tandem::extension
