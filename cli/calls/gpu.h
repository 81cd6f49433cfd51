// CUDA devices as the tools see them: memory, the graph timer, ceilings, state. In a build without
// CUDA every function throws Unsupported (gpu_missing.cpp), so nothing else needs to know.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::tools::gpu {

/// Device memory, freed with the object.
class Memory {
 public:
  Memory(int device, std::size_t bytes);
  ~Memory();  // NOLINT(performance-trivially-destructible): frees, in a build with CUDA
  Memory(Memory&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}
  Memory& operator=(Memory&&) = delete;

  void* data() const { return data_; }

 private:
  int device_;
  void* data_ = nullptr;
};

/// Enqueued on the default stream, as copy(): synchronize() before another one reads it.
void upload(void* device_data, const void* host_data, std::size_t bytes);
void download(void* host_data, const void* device_data, std::size_t bytes);
void copy(void* to, const void* from, std::size_t bytes);  // on the device
void fill(void* device_data, int byte, std::size_t bytes);
/// Two places of a device.
struct Pair {
  const void *a, *b;
  std::size_t bytes;
};
/// Returns whether the places of each pair agree, after waiting for the device.
bool equal(int device, const std::vector<Pair>& pairs);

/// Waits for the device, and throws what went wrong on it, if anything did.
void synchronize(int device);

/// Begins or ends the range that a profiler counts.
void profile(int device, bool on);

/// What is timed: `run(set, stream)` with each of `sets` sets of buffers.
struct TimedCall {
  std::function<void(int set, void* stream)> run;
  int sets = 1;
};
/// Measures microseconds per call, one sample per replay of a graph of its sets. The graphs of
/// several calls are replayed in turn: all have the same clocks.
std::vector<std::vector<double>> time(int device, const std::vector<TimedCall>& calls, int replays);

struct Ceilings {
  double copy_tbps = 0;
  double bf16_tflops = 0;
};
Ceilings ceilings(int device);

struct State {
  bool known = false;
  std::string driver;
  int sm_clock_mhz = 0;
  int power_w = 0;
  unsigned long long throttle_reasons = 0;
};
/// State of a device; `known` is false where NVML is absent.
State state(int device);

}  // namespace tandem::tools::gpu
