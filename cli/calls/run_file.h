// One call on the tensors of a file: what `tandem run` and `tandem demo` do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/operation.h"
#include "tandem/device.h"

namespace tandem::tools {

/// How many values of an output are not finite.
struct NotFinite {
  std::string output;
  std::int64_t values, all;
};

/// What a run read, and what is to be said of its outputs.
struct FileRun {
  TensorSet set;  // inputs as read
  std::vector<NotFinite> not_finite;
};

/// Reads `in`, runs the op on `device` and writes its outputs to `out`, which is whole or not
/// there. Folders that `out` lacks are made.
FileRun run_file(const Operation& operation, const std::string& in, const std::string& out,
                 Device device, const Settings& settings);

/// Compares the outputs in `file` with the definition on the inputs in `set`.
std::vector<OutputError> verify_file(const Operation& operation, const TensorSet& set,
                                     const std::string& file);

}  // namespace tandem::tools
