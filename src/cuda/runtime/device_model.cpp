#include "cuda/runtime/device_model.h"

#include <string>

#include "tandem/device.h"

namespace tandem::cuda {
namespace {

/// An H200's model with memory rates scaled by those of a large copy, 3.03 and 4.29 TB/s
/// (bench/results); the rest is the same chip at the same clocks.
DeviceModel make_h100() {
  constexpr double kMemory = 3.03 / 4.29;
  DeviceModel model;
  model.gla_walk.bytes_per_microsecond *= kMemory;
  model.gla_chunks.bytes_per_microsecond *= kMemory;
  model.gla_reverse.head /= kMemory;
  model.scan.element_together /= kMemory;
  model.linear_scan.bytes_per_microsecond *= kMemory;
  model.linear_scan.kept /= kMemory;
  model.linear_scan.composed_x /= kMemory;
  return model;
}

}  // namespace

const DeviceModel& device_model(const DeviceProperties& device) {
  static const DeviceModel h200;
  static const DeviceModel h100 = make_h100();
  return device.name.find("H100") == std::string::npos ? h200 : h100;
}

}  // namespace tandem::cuda
