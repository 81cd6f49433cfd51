// Where calls run: devices by name, a set's buffers on one of them, and the variants there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/calls/gpu.h"
#include "cli/calls/operation.h"
#include "cli/tensors/tensors.h"
#include "tandem/device.h"
#include "tandem/variants.h"

namespace tandem::tools {

/// Says why CUDA calls cannot run here: no build, no device, not compute capability 9.0. "" when
/// they can.
std::string cuda_missing_reason();

/// Returns the device of "cpu" or "cuda" (the first one), or with "" of every backend that can run
/// here. Throws Unsupported when what was asked for cannot.
std::vector<Device> backends(const std::string& name);

/// Returns "cpu" or "cuda".
std::string backend_name(Device device);

/// Returns "NVIDIA H200", or a CPU's model and how many threads OpenMP uses.
std::string device_name(Device device);

/// A copy of a set's buffers on a device.
class Placement {
 public:
  Placement(const TensorSet& set, Device device);
  /// Room for buffers of these sizes, not filled.
  Placement(std::vector<std::size_t> sizes, Device device);

  void upload(const Buffers& buffers);
  /// Sets every byte of every buffer.
  void fill(int byte);
  /// Copies the buffers back, after waiting for the device.
  Buffers download() const;
  HostBuffer download(std::size_t buffer) const;

  /// Between placements of one set on one device, without passing through the host. A copy on a GPU
  /// is enqueued on the default stream.
  void copy(const Placement& from);
  /// Compares the buffers that are marked.
  bool equal(const Placement& other, const std::vector<bool>& marked) const;
  const std::vector<std::size_t>& sizes() const { return sizes_; }
  const std::vector<void*>& bases() const { return bases_; }
  Device device() const { return device_; }

 private:
  std::vector<std::size_t> sizes_;
  Device device_;
  Buffers host_;
  std::vector<gpu::Memory> memory_;
  std::vector<void*> bases_;
};

/// Names of the entry's variants that some call can use on the device, in the library's order. An
/// entry of several functions has the one name kLibraryChoice.
std::vector<std::string> available_variants(const Operation& operation, Device device);

}  // namespace tandem::tools
