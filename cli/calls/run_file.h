// One call on the tensors of a file: what `tandem run` and `tandem demo` do.
#pragma once

#include <string>

#include "cli/calls/arguments.h"
#include "cli/calls/operation.h"
#include "tandem/device.h"

namespace tandem::tools {

/// Reads `in`, runs the op on `device` and writes its outputs to `out`, which is whole or not
/// there. Returns the inputs as read.
TensorSet run_file(const Operation& operation, const std::string& in, const std::string& out,
                   Device device, const Settings& settings);

/// Compares the outputs in `file` with the definition on the inputs in `set`.
std::vector<OutputError> verify_file(const Operation& operation, const TensorSet& set,
                                     const std::string& file);

}  // namespace tandem::tools
