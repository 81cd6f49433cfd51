#include "cli/calls/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "cli/files/json.h"
#include "core/real.h"

namespace tandem::tools {
namespace {

/// Adds a contiguous tensor. Its memory is not touched yet: what is refused costs nothing.
void add_untouched(TensorSet& set, const std::string& name, DType dtype, const Dims& shape,
                   bool output) {
  NamedTensor& tensor = set.tensors.emplace_back(
      NamedTensor{name, dtype, shape, contiguous_strides(shape), set.buffers.size(),
                  static_cast<std::int64_t>(kGuardBytes), output});
  set.buffers.push_back(HostBuffer::uninitialized(guarded_bytes(tensor)));
}

/// Takes every tensor of the file as an input; one that is updated in place is an output as well.
TensorSet name_inputs(const Operation& operation, const SafetensorsReader& file) {
  std::vector<std::string> known = operation.inputs();
  for (const std::string& name : operation.optional_inputs()) known.push_back(name);
  for (const FileEntry& from : file.entries()) {
    if (std::find(known.begin(), known.end(), from.name) != known.end()) continue;
    throw std::runtime_error(fmt::format("{}: tensor {}: is no input of {} ({})", file.path(),
                                         shown(from.name), title(operation),
                                         fmt::join(known, ", ")));
  }
  TensorSet set;
  for (const FileEntry& from : file.entries()) {
    const Role role = operation.calls.front()->find(from.name)->role;
    add_untouched(set, from.name, from.dtype, from.shape, role == Role::kInPlace);
  }
  for (const std::string& name : operation.inputs()) {
    if (set.find(name) == nullptr) {
      throw std::runtime_error(fmt::format("{}: tensor {}: is missing", file.path(), name));
    }
  }
  return set;
}

bool parse_bool(const std::string& name, const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw UsageError(fmt::format("--set {}: must be true or false, got {}", name, text));
}

double parse_number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) {
    throw UsageError(fmt::format("--set {}: must be a finite number, got {}", name, text));
  }
  return value;
}

/// Whether --set chooses if the output is made.
bool is_choice(const Parameter& row) {
  return row.role == Role::kOutput && row.optional && row.made_with == nullptr;
}

std::string setting_name(const Parameter& row) {
  return row.number ? row.name : std::string("output_") + row.name;
}

/// Whether --set chooses if the output is fp32.
bool is_choice_of_dtype(const Parameter& row) {
  return row.role == Role::kOutput && row.element == Element::kSameOrFp32 &&
         row.dtype_of == nullptr;
}

std::string dtype_setting_name(const Parameter& row) { return std::string("fp32_") + row.name; }

/// Returns numbers, and choices as 0 or 1, by name.
std::map<std::string, double> parse_settings(const Operation& operation, const Settings& settings) {
  std::map<std::string, double> values;
  std::vector<std::string> known;
  const auto take = [&](const std::string& name, bool is_number) {
    known.push_back(name);
    const auto at = settings.find(name);
    if (at == settings.end()) return;
    values[name] = is_number ? parse_number(name, at->second)
                             : static_cast<double>(parse_bool(name, at->second));
  };
  for (const Parameter& row : operation.calls.front()->parameters()) {
    if (row.is_flag) continue;
    if (row.number || is_choice(row)) take(setting_name(row), row.number);
    if (is_choice_of_dtype(row)) take(dtype_setting_name(row), false);
  }
  for (const auto& [name, text] : settings) {
    if (values.count(name) != 0) continue;
    throw UsageError(known.empty()
                         ? fmt::format("--set {}: {} has no settings", name, title(operation))
                         : fmt::format("--set {}: {} has no such setting ({})", name,
                                       title(operation), fmt::join(known, ", ")));
  }
  return values;
}

/// Adds an output, contiguous; a shape that no memory could hold is refused here.
void add_output(TensorSet& set, const SafetensorsReader& file, const Parameter& row, DType dtype,
                const Dims& shape) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 42;
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMostBytes) {
      throw std::runtime_error(
          fmt::format("{}: {} {} is too large", file.path(), row.name, to_string(shape)));
    }
  }
  add_untouched(set, row.name, dtype, shape, true);
}

}  // namespace

const NamedTensor* tensor_of(const TensorSet& set, const Parameter& row) {
  const NamedTensor* tensor = set.find(row.name);
  return tensor != nullptr || row.kept_as == nullptr ? tensor : set.find(row.kept_as);
}

std::shared_ptr<void> arguments(const Signature& signature, const TensorSet& set,
                                const std::vector<void*>& bases, Device device) {
  std::shared_ptr<void> args = signature.make_args();
  for (const Parameter& row : signature.parameters()) {
    if (row.number) {
      const auto value = set.scalars.find(row.name);
      if (value != set.scalars.end()) row.set_value(args.get(), value->second);
    } else if (const NamedTensor* tensor = tensor_of(set, row)) {
      row.set_view(args.get(), view(*tensor, bases[tensor->buffer], device));
    }
  }
  return args;
}

TensorSet read_call(const Operation& operation, const SafetensorsReader& file,
                    const Settings& settings) {
  const Signature& signature = *operation.calls.front();
  const std::map<std::string, double> values = parse_settings(operation, settings);
  TensorSet set = name_inputs(operation, file);
  for (const Parameter& row : signature.parameters()) {
    if (row.number && values.count(row.name) != 0) set.scalars[row.name] = values.at(row.name);
  }
  const auto args = arguments(signature, set, host_bases(set), Device::cpu());
  const std::vector<std::int64_t> extents = signature.extents(args.get());
  for (const Parameter& row : signature.parameters()) {
    const auto value = values.find(setting_name(row));
    const bool is_set = value != values.end();
    if (row.number || !row.is_output() || row.role == Role::kInPlace) continue;
    bool wanted = !is_choice(row) || set.find(row.may_be ? row.may_be : "") != nullptr;
    if (row.made_with != nullptr) wanted = set.find(row.made_with) != nullptr;
    if (is_choice(row) && is_set) wanted = value->second != 0;
    // Where ranks do not fit there is no shape, and the check refuses the inputs.
    const auto shape = signature.shape(row, args.get(), extents);
    if (!wanted || !shape) continue;
    DType dtype = signature.dtype(row, args.get());
    const auto fp32 = values.find(dtype_setting_name(row));
    if (fp32 != values.end() && fp32->second != 0) dtype = real_dtype(dtype);
    add_output(set, file, row, dtype, *shape);
    row.set_view(args.get(), view(set.get(row.name), nullptr, Device::cpu()));
  }
  signature.check(arguments(signature, set, host_bases(set), Device::cpu()).get());
  for (std::size_t i = 0; i < file.entries().size(); ++i) {
    file.read(file.entries()[i], set.buffers[i].data() + set.tensors[i].offset);
  }
  for (std::size_t i = file.entries().size(); i < set.tensors.size(); ++i) {
    set.buffers[i] = HostBuffer(guarded_bytes(set.tensors[i]));
  }
  return set;
}

void differentiate(TensorSet& set, const Signature& backward, std::uint64_t seed,
                   const std::function<GradientLayout(const NamedTensor& input)>& layout) {
  for (std::size_t i = 0; i < set.tensors.size(); ++i) {
    const Parameter* given = backward.find("d_" + set.tensors[i].name);
    if (!set.tensors[i].output || given == nullptr) continue;
    NamedTensor tensor = set.tensors[i];
    // No gradient is updated in place, as a state is.
    const bool in_place = std::any_of(set.tensors.begin(), set.tensors.end(), [&](const auto& x) {
      return !x.output && x.buffer == tensor.buffer && x.offset == tensor.offset;
    });
    tensor.name = given->name;
    tensor.output = false;
    if (in_place) {
      set.tensors.erase(set.tensors.begin() + static_cast<std::ptrdiff_t>(i--));
      tensor = add_tensor(set, given->name, tensor.dtype, tensor.shape, tensor.strides, false);
    } else {
      set.tensors[i] = tensor;
    }
    fill_normal(tensor, set.buffers, RandomStream(seed, tensor.name));
  }
  for (const Parameter& row : backward.parameters()) {
    if (row.role != Role::kGradient || !set.find(row.source)) continue;
    const NamedTensor like = set.get(row.source);
    const GradientLayout laid_out = layout(like);
    add_tensor(set, row.name, like.dtype, like.shape, laid_out.strides, true, laid_out.shift);
  }
}

}  // namespace tandem::tools
