#include "cli/calls/file_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace tandem::tools {

TensorSet read_inputs(const SafetensorsFile& file, const std::string& call,
                      const std::vector<std::string>& inputs,
                      const std::vector<std::string>& optional_inputs) {
  std::vector<std::string> known = inputs;
  known.insert(known.end(), optional_inputs.begin(), optional_inputs.end());
  TensorSet set;
  for (const FileTensor& from : file.tensors) {
    if (std::find(known.begin(), known.end(), from.name) == known.end()) {
      throw std::runtime_error(fmt::format("{}: tensor {}: is no input of {} ({})", file.path,
                                           from.name, call, fmt::join(known, ", ")));
    }
    const NamedTensor& to =
        add_tensor(set, from.name, from.dtype, from.shape, contiguous_strides(from.shape), false);
    std::memcpy(set.buffers[to.buffer].data() + to.offset, from.data.data(), span_bytes(to));
  }
  for (const std::string& name : inputs) {
    if (set.find(name) == nullptr) {
      throw std::runtime_error(fmt::format("{}: tensor {}: is missing", file.path, name));
    }
  }
  return set;
}

bool parse_bool(const std::string& name, const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  throw std::runtime_error(fmt::format("--set {}: must be true or false, got {}", name, text));
}

double parse_number(const std::string& name, const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (text.empty() || used != text.size()) {
    throw std::runtime_error(fmt::format("--set {}: must be a number, got {}", name, text));
  }
  return value;
}

}  // namespace tandem::tools
