// Device queries of a build without CUDA.
#include "tandem/device.h"

#include "tandem/error.h"

namespace tandem {

bool built_with_cuda() noexcept { return false; }

int cuda_device_count() noexcept { return 0; }

std::string cuda_unavailable_reason() { return "this library was built without CUDA"; }

const DeviceProperties& device_properties(Device device) {
  static const DeviceProperties cpu = DeviceProperties::cpu();
  if (device.type == DeviceType::kCpu) return cpu;
  throw Unsupported("[device_properties] " + to_string(device) + ": " + cuda_unavailable_reason());
}

}  // namespace tandem
