#include "tandem/device.h"

namespace tandem {

std::string to_string(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace tandem
