// A call's arguments from a set of tensors, and the tensors of a call from a file: what follows
// from the tables in src/ops.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/tensors/safetensors.h"
#include "cli/tensors/tensors.h"
#include "ops/signature.h"

namespace tandem::tools {

using Settings = std::map<std::string, std::string>;  // --set name=value

/// What is wrong with the command line: the program exits with 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The tensor of a set that a call takes for a row, or null.
const NamedTensor* tensor_of(const TensorSet& set, const Parameter& row);

/// Makes the arguments of a call with each buffer of the set at `bases[i]` on `device`. Tensors of
/// other calls in the set are left out.
std::shared_ptr<void> arguments(const Signature& signature, const TensorSet& set,
                                const std::vector<void*>& bases, Device device);

/// The same as the public struct that the call takes.
template <class Args>
Args arguments_of(const Signature& signature, const TensorSet& set, const std::vector<void*>& bases,
                  Device device) {
  return *static_cast<const Args*>(arguments(signature, set, bases, device).get());
}

/// Over the set's own buffers, to be read only.
template <class Args>
Args host_arguments(const Signature& signature, const TensorSet& set) {
  return arguments_of<Args>(signature, set, host_bases(set), Device::cpu());
}

/// Makes the tensors of an entry's call from a file, and numbers and choices of outputs from --set.
/// Optional outputs are made where --set says so or, without a word, where the input that they may
/// replace is given. Data is read once the call's table has taken every name, dtype and shape.
/// Throws UsageError naming the setting, std::runtime_error naming file and tensor, and
/// InvalidArgument.
TensorSet read_call(const Operation& operation, const SafetensorsReader& file,
                    const Settings& settings);

/// How a gradient lies in memory.
struct GradientLayout {
  Dims strides;
  std::int64_t shift = 0;  // elements off its alignment
};

/// Turns the tensors of a forward call into those of its backward: outputs become their gradients,
/// which are given, filled by the seed; inputs that can have gradients get them as outputs, as
/// `layout` says.
void differentiate(TensorSet& set, const Signature& backward, std::uint64_t seed,
                   const std::function<GradientLayout(const NamedTensor& input)>& layout);

}  // namespace tandem::tools
