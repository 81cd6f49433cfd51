// Device queries through the CUDA runtime, cached: properties never change while a process runs.
#include "tandem/device.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/runtime/cuda_check.h"
#include "tandem/error.h"

namespace tandem {
namespace {

struct Devices {
  std::vector<DeviceProperties> properties;
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
  for (int index = 0; index < count; ++index) devices.properties.push_back(query(index));
  return devices;
}

const Devices& devices() {
  static const Devices found = find_devices();
  return found;
}

}  // namespace

bool built_with_cuda() noexcept { return true; }

int cuda_device_count() noexcept {
  try {
    return static_cast<int>(devices().properties.size());
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

DeviceProperties device_properties(Device device) {
  if (device.type == DeviceType::kCpu) return DeviceProperties::cpu();
  const int count = cuda_device_count();
  if (device.index >= 0 && device.index < count) return devices().properties[device.index];
  const std::string reason = count == 0
                                 ? cuda_unavailable_reason()
                                 : "this machine has " + std::to_string(count) + " device(s)";
  throw Unsupported("[device_properties] " + to_string(device) + ": " + reason);
}

}  // namespace tandem
