// What the tests of device parts share: a fixture that skips, saying why, where nothing can run
// them, and memory that both sides can read.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tandem/device.h"

namespace tandem::cuda {

class GpuPart : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << cuda_unavailable_reason();
    const DeviceProperties& device = device_properties(Device::cuda());
    if (device.compute_major != 9 || device.compute_minor != 0) {
      GTEST_SKIP() << device.name << " has compute capability " << device.compute_major << "."
                   << device.compute_minor << ", needs 9.0";
    }
  }
  /// Waits for the kernel and fails the test with the device's error, if any.
  static void finish() { ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << last_error(); }
  static const char* last_error() { return cudaGetErrorString(cudaGetLastError()); }
};

/// Device memory with a host copy.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::vector<T> values) : host(std::move(values)) {
    EXPECT_EQ(cudaMalloc(&device, bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device, host.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  explicit DeviceArray(std::size_t count) : DeviceArray(std::vector<T>(count)) {}
  ~DeviceArray() { cudaFree(device); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  const std::vector<T>& download() {
    EXPECT_EQ(cudaMemcpy(host.data(), device, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }
  std::size_t bytes() const { return host.size() * sizeof(T); }

  std::vector<T> host;
  T* device = nullptr;
};

/// Normal values exactly representable in Element.
template <class Element>
std::vector<Element> random_elements(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<Element> values;
  values.reserve(count);
  for (std::size_t i = 0; i < count; ++i) values.push_back(Element(normal(generator)));
  return values;
}

/// ||out - expected|| / ||expected||; not a number where `out` is not.
inline double relative_rms(const std::vector<float>& out, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (out[i] - expected[i]) * (out[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace tandem::cuda
