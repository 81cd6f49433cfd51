// What the entries' from_file have in common: tensors of a file, and scalars from --set.
#pragma once

#include <string>
#include <vector>

#include "cli/tensors/safetensors.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Takes every tensor of the file as an input, contiguous. Throws std::runtime_error naming the
/// file and the tensor when one is in neither list, or one of `inputs` is missing; `call`, "gla
/// forward", is named in the text.
TensorSet read_inputs(const SafetensorsFile& file, const std::string& call,
                      const std::vector<std::string>& inputs,
                      const std::vector<std::string>& optional_inputs);

/// Reads the text of --set name=text. Throws std::runtime_error naming the setting.
bool parse_bool(const std::string& name, const std::string& text);
double parse_number(const std::string& name, const std::string& text);

}  // namespace tandem::tools
