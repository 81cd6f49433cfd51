// Devices and what is known of them.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace tandem {

enum class DeviceType { kCpu, kCuda };

/// Where a tensor lives. `index` is the CUDA ordinal, 0 for the CPU.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::kCuda, index}; }
  friend constexpr bool operator==(Device, Device) = default;
};

/// "cpu" or "cuda:0".
std::string to_string(Device device);

/// What a variant's choice and a workspace's size depend on. A plain value: a host without a GPU
/// can ask what an H200 would need.
struct DeviceProperties {
  DeviceType type = DeviceType::kCpu;
  std::string name = "cpu";
  int compute_major = 0;                    ///< 0 on the CPU
  int compute_minor = 0;                    ///< 0 on the CPU
  int multiprocessors = 0;                  ///< 0 on the CPU
  std::size_t shared_memory_per_block = 0;  ///< opt-in limit, bytes
  std::size_t l2_bytes = 0;                 ///< 0 on the CPU
  /// Clusters of 2, 3, ... 16 thread blocks that run at once, a block to a multiprocessor: less
  /// than the multiprocessors would give, since a cluster lies in one part of the chip.
  std::array<int, 15> clusters = {};

  /// The same of 1 to 16 blocks.
  int clusters_of(int blocks) const { return blocks == 1 ? multiprocessors : clusters[blocks - 2]; }

  static DeviceProperties cpu() { return {}; }
  static DeviceProperties h200() {
    return {DeviceType::kCuda,
            "NVIDIA H200",
            9,
            0,
            132,
            232448,
            62914560,
            {66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7}};
  }
};

/// Whether this library was built with its CUDA backend.
bool built_with_cuda() noexcept;

/// Number of CUDA devices that this process can use: 0 without a driver, a device or the CUDA
/// backend.
int cuda_device_count() noexcept;

/// Says why cuda_device_count() is 0 ("built without CUDA", the driver's message...); "" when it is
/// not.
std::string cuda_unavailable_reason();

/// Properties of a device, queried once and kept as long as the process runs.
/// Throws Unsupported when the device does not exist, naming the reason.
const DeviceProperties& device_properties(Device device);

}  // namespace tandem
