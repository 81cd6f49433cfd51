// Device queries of a build without CUDA.
#include "tandem/device.h"

#include "tandem/error.h"

namespace tandem {

bool built_with_cuda() noexcept { return false; }

int cuda_device_count() noexcept { return 0; }

std::string cuda_unavailable_reason() { return "this library was built without CUDA"; }

DeviceProperties device_properties(Device device) {
  if (device.type == DeviceType::kCpu) return DeviceProperties::cpu();
  throw Unsupported("[device_properties] " + to_string(device) + ": " + cuda_unavailable_reason());
}

}  // namespace tandem
