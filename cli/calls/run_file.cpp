#include "cli/calls/run_file.h"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "cli/calls/arguments.h"
#include "cli/calls/backend.h"
#include "cli/tensors/safetensors.h"
#include "tandem/error.h"

namespace tandem::tools {

TensorSet run_file(const Operation& operation, const std::string& in, const std::string& out,
                   Device device, const Settings& settings) {
  if (!operation.runs_files) {
    throw std::runtime_error(title(operation) + " cannot be run on a file");
  }
  TensorSet set;
  Buffers after;
  try {
    set = read_call(operation, SafetensorsReader(in), settings);
    Placement placement(set, device);
    operation.call(set, placement.bases(), device, {});
    after = placement.download();
  } catch (const InvalidArgument& error) {
    throw std::runtime_error(in + ": " + error.what());
  }
  std::vector<NamedView> outputs;
  for (const NamedTensor& tensor : set.tensors) {
    if (!tensor.output) continue;
    outputs.push_back({tensor.name, view(tensor, after[tensor.buffer].data(), Device::cpu())});
  }
  write_safetensors(out, outputs);
  return set;
}

std::vector<OutputError> verify_file(const Operation& operation, const TensorSet& set,
                                     const std::string& file) {
  const SafetensorsFile written = read_safetensors(file);
  Buffers after = clone(set.buffers);
  for (const NamedTensor& tensor : set.tensors) {
    if (!tensor.output) continue;
    const FileTensor* from = written.find(tensor.name);
    if (from == nullptr || from->dtype != tensor.dtype || from->shape != tensor.shape) {
      throw std::runtime_error(fmt::format("{}: tensor {}: must be {} {}", file, tensor.name,
                                           to_string(tensor.dtype), to_string(tensor.shape)));
    }
    std::memcpy(after[tensor.buffer].data() + tensor.offset, from->data.data(), span_bytes(tensor));
  }
  return operation.expect(set, false)->compare(set, after);
}

}  // namespace tandem::tools
