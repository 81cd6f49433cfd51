// Device queries through the CUDA runtime, made once: properties never change while a process runs.
#include "tandem/device.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <mutex>

#include "cuda/runtime/clusters.h"
#include "cuda/runtime/cuda_check.h"
#include "tandem/error.h"

namespace tandem {
namespace {

/// What is known of a device. Its clusters are counted when somebody first asks for its properties:
/// that takes a context, which devices that are not used should not get.
struct Known {
  DeviceProperties properties;
  std::once_flag counted;
};

struct Devices {
  std::deque<Known> known;
  std::string unavailable;
};

DeviceProperties query(int index) {
  cudaDeviceProp prop{};
  cuda::cuda_check(cudaGetDeviceProperties(&prop, index), "cudaGetDeviceProperties");
  return {DeviceType::kCuda,
          prop.name,
          prop.major,
          prop.minor,
          prop.multiProcessorCount,
          prop.sharedMemPerBlockOptin,
          static_cast<std::size_t>(prop.l2CacheSize)};
}

Devices find_devices() {
  Devices devices;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    devices.unavailable = std::string("no CUDA device: ") + cudaGetErrorString(status);
    return devices;
  }
  if (count == 0) devices.unavailable = "no CUDA device: the driver reports none";
  for (int index = 0; index < count; ++index) {
    devices.known.emplace_back().properties = query(index);
  }
  return devices;
}

Devices& devices() {
  static Devices found = find_devices();
  return found;
}

}  // namespace

bool built_with_cuda() noexcept { return true; }

int cuda_device_count() noexcept {
  try {
    return static_cast<int>(devices().known.size());
  } catch (const std::exception&) {
    return 0;
  }
}

std::string cuda_unavailable_reason() {
  try {
    return devices().unavailable;
  } catch (const Error& error) {
    return error.what();
  }
}

const DeviceProperties& device_properties(Device device) {
  static const DeviceProperties cpu = DeviceProperties::cpu();
  if (device.type == DeviceType::kCpu) return cpu;
  const int count = cuda_device_count();
  if (device.index >= 0 && device.index < count) {
    Known& known = devices().known[device.index];
    DeviceProperties& properties = known.properties;
    std::call_once(known.counted, [&] {
      if (properties.compute_major == 9) {
        properties.clusters = cuda::count_clusters(device.index);
      }
    });
    return properties;
  }
  const std::string reason = count == 0
                                 ? cuda_unavailable_reason()
                                 : "this machine has " + std::to_string(count) + " device(s)";
  throw Unsupported("[device_properties] " + to_string(device) + ": " + reason);
}

}  // namespace tandem
