#include "cli/calls/backend.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include "tandem/error.h"

namespace tandem::tools {

std::string cuda_missing_reason() {
  if (cuda_device_count() == 0) return cuda_unavailable_reason();
  const DeviceProperties& device = device_properties(Device::cuda());
  if (device.compute_major == 9 && device.compute_minor == 0) return "";
  return fmt::format("{} has compute capability {}.{}, needs 9.0", device.name,
                     device.compute_major, device.compute_minor);
}

std::vector<Device> backends(const std::string& name) {
  if (name == "cpu") return {Device::cpu()};
  const std::string reason = cuda_missing_reason();
  if (name == "cuda") {
    if (!reason.empty()) throw Unsupported("--backend cuda: " + reason);
    return {Device::cuda()};
  }
  if (!reason.empty()) return {Device::cpu()};
  return {Device::cpu(), Device::cuda()};
}

std::string backend_name(Device device) { return device.type == DeviceType::kCpu ? "cpu" : "cuda"; }

std::string device_name(Device device) {
  if (device.type == DeviceType::kCuda) return device_properties(device).name;
  std::string name = "cpu";
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    name = line.substr(line.find(':') + 2);
    break;
  }
  return fmt::format("{}, {} threads", name, omp_get_max_threads());
}

namespace {

std::vector<std::size_t> sizes_of(const TensorSet& set) {
  std::vector<std::size_t> sizes;
  for (const HostBuffer& buffer : set.buffers) sizes.push_back(buffer.size());
  return sizes;
}

}  // namespace

Placement::Placement(const TensorSet& set, Device device) : Placement(sizes_of(set), device) {
  upload(set.buffers);
}

Placement::Placement(std::vector<std::size_t> sizes, Device device)
    : sizes_(std::move(sizes)), device_(device) {
  for (const std::size_t bytes : sizes_) {
    if (device.type == DeviceType::kCpu) {
      host_.push_back(HostBuffer::uninitialized(bytes));
      bases_.push_back(host_.back().data());
    } else {
      memory_.emplace_back(device.index, bytes);
      bases_.push_back(memory_.back().data());
    }
  }
}

void Placement::upload(const Buffers& buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (memory_.empty()) {
      std::memcpy(bases_[i], buffers[i].data(), buffers[i].size());
    } else {
      gpu::upload(bases_[i], buffers[i].data(), buffers[i].size());
    }
  }
  // Callers go on on streams that do not wait for the default one.
  if (!memory_.empty()) gpu::synchronize(device_.index);
}

void Placement::fill(int byte) {
  for (std::size_t i = 0; i < bases_.size(); ++i) {
    if (memory_.empty()) {
      std::memset(bases_[i], byte, sizes_[i]);
    } else {
      gpu::fill(bases_[i], byte, sizes_[i]);
    }
  }
}

Buffers Placement::download() const {
  Buffers copies;
  for (std::size_t i = 0; i < bases_.size(); ++i) copies.push_back(download(i));
  return copies;
}

HostBuffer Placement::download(std::size_t buffer) const {
  if (memory_.empty()) return host_[buffer].clone();
  gpu::synchronize(device_.index);
  HostBuffer copy = HostBuffer::uninitialized(sizes_[buffer]);
  gpu::download(copy.data(), bases_[buffer], sizes_[buffer]);
  return copy;
}

void Placement::copy(const Placement& from) {
  for (std::size_t i = 0; i < bases_.size(); ++i) {
    if (memory_.empty()) {
      std::memcpy(bases_[i], from.bases_[i], sizes_[i]);
    } else {
      gpu::copy(bases_[i], from.bases_[i], sizes_[i]);
    }
  }
}

bool Placement::equal(const Placement& other, const std::vector<bool>& marked) const {
  std::vector<gpu::Pair> pairs;
  for (std::size_t i = 0; i < bases_.size(); ++i) {
    if (marked[i]) pairs.push_back({bases_[i], other.bases_[i], sizes_[i]});
  }
  if (!memory_.empty()) return gpu::equal(device_.index, pairs);
  return std::ranges::all_of(
      pairs, [](const gpu::Pair& pair) { return std::memcmp(pair.a, pair.b, pair.bytes) == 0; });
}

std::vector<std::string> available_variants(const Operation& operation, Device device) {
  if (operation.calls.size() > 1) return {kLibraryChoice};
  std::vector<std::string> available;
  for (VariantInfo& variant : variants(device_properties(device))) {
    if (has_variant(operation, variant.name) && variant.unavailable.empty()) {
      available.push_back(std::move(variant.name));
    }
  }
  return available;
}

}  // namespace tandem::tools
