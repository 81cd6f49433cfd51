#include "cli/calls/run_file.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "cli/calls/arguments.h"
#include "cli/calls/backend.h"
#include "cli/files/files.h"
#include "cli/tensors/safetensors.h"
#include "tandem/error.h"

namespace tandem::tools {

namespace {

std::int64_t count_not_finite(const NamedTensor& tensor, const std::byte* data) {
  std::atomic<std::int64_t> count = 0;  // for_each_element() runs in parallel
  for_each_element(tensor, [&](std::int64_t offset, std::int64_t) {
    if (!std::isfinite(load(tensor.dtype, data, offset))) ++count;
  });
  return count;
}

}  // namespace

FileRun run_file(const Operation& operation, const std::string& in, const std::string& out,
                 Device device, const Settings& settings) {
  if (!operation.runs_files()) {
    throw UsageError(
        fmt::format("{} is several calls; a file has the tensors of one", title(operation)));
  }
  require_writable(out);
  FileRun run;
  TensorSet& set = run.set;
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
    const std::byte* data = after[tensor.buffer].data();
    outputs.push_back({tensor.name, view(tensor, after[tensor.buffer].data(), Device::cpu())});
    const std::int64_t count = count_not_finite(tensor, data + tensor.offset);
    if (count > 0) run.not_finite.push_back({tensor.name, count, tensor.shape.product()});
  }
  make_folder_of(out);
  write_safetensors(out, outputs);
  return run;
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
