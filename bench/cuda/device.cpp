// Memory, errors, and the state of the device as NVML tells it.
#include <cuda_profiler_api.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "bench.h"
#include "equal.h"
#include "status.h"

namespace tandem::bench {
namespace {

thread_local std::string last_error;

/// The few functions of NVML that are used, looked up at run time: it comes with the driver, not
/// the toolkit, and a machine without it can build and load this.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error("[nvml] libnvidia-ml.so.1 is not found");
    try {
      check(find<int()>("nvmlInit_v2")(), "nvmlInit_v2");
    } catch (...) {
      dlclose(library_);
      throw;
    }
  }
  ~Nvml() {
    if (const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlShutdown")))
      shutdown();
    dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  void driver_version(char* text, unsigned size) const {
    check(find<int(char*, unsigned)>("nvmlSystemGetDriverVersion")(text, size),
          "nvmlSystemGetDriverVersion");
  }

  void select(int device) {
    char bus[32];
    bench::check(cudaDeviceGetPCIBusId(bus, sizeof(bus), device), "cudaDeviceGetPCIBusId");
    check(find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2")(bus, &device_),
          "nvmlDeviceGetHandleByPciBusId");
  }

  unsigned sm_clock_mhz() const {
    constexpr int kSmClock = 1;  // NVML_CLOCK_SM
    unsigned mhz = 0;
    check(find<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo")(device_, kSmClock, &mhz),
          "nvmlDeviceGetClockInfo");
    return mhz;
  }

  unsigned power_mw() const {
    unsigned mw = 0;
    check(find<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage")(device_, &mw),
          "nvmlDeviceGetPowerUsage");
    return mw;
  }

  unsigned long long throttle_reasons() const {
    constexpr unsigned long long kIdle = 1;  // an idle device's low clocks are no throttling
    unsigned long long reasons = 0;
    check(find<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons")(
              device_, &reasons),
          "nvmlDeviceGetCurrentClocksThrottleReasons");
    return reasons & ~kIdle;
  }

 private:
  static void check(int status, const char* what) {
    if (status != 0)
      throw std::runtime_error("[nvml] " + std::string(what) + " returned " +
                               std::to_string(status));
  }

  template <typename Function>
  Function* find(const char* name) const {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr) throw std::runtime_error("[nvml] no function " + std::string(name));
    return reinterpret_cast<Function*>(symbol);
  }

  void* library_;
  void* device_ = nullptr;
};

/// Lets the device's pool keep what is freed. why: a check allocates dozens of times a second, and
/// to map and unmap memory each time costs more than its kernels.
void keep_pool(int device) {
  static thread_local int kept = -1;
  if (kept == device) return;
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  std::uint64_t all = UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
        "cudaMemPoolSetAttribute");
  kept = device;
}

}  // namespace

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();  // out of memory for the message
  }
}

}  // namespace tandem::bench

using tandem::bench::check;
using tandem::bench::DeviceScope;
using tandem::bench::guarded;
using tandem::bench::keep_pool;

const char* tandem_bench_last_error(void) { return tandem::bench::last_error.c_str(); }

int tandem_bench_allocate(int device, size_t bytes, void** data) {
  return guarded([&] {
    const DeviceScope scope(device);
    keep_pool(device);
    check(cudaMallocAsync(data, bytes, nullptr), "cudaMallocAsync");
    check(cudaStreamSynchronize(nullptr), "cudaMallocAsync");  // for other streams, too
  });
}

int tandem_bench_free(int device, void* data) {
  return guarded([&] {
    const DeviceScope scope(device);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaFreeAsync(data, nullptr), "cudaFreeAsync");
  });
}

int tandem_bench_upload(void* device_data, const void* host_data, size_t bytes) {
  return guarded([&] {
    // From pageable memory, which is read before this returns.
    check(cudaMemcpyAsync(device_data, host_data, bytes, cudaMemcpyHostToDevice, nullptr),
          "cudaMemcpyAsync");
  });
}

int tandem_bench_download(void* host_data, const void* device_data, size_t bytes) {
  return guarded([&] {
    check(cudaMemcpy(host_data, device_data, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  });
}

int tandem_bench_fill(void* device_data, int byte, size_t bytes) {
  return guarded([&] {
    check(cudaMemset(device_data, byte, bytes), "cudaMemset");
    // why: a memset returns before it is done, and callers go on to non-blocking streams.
    check(cudaStreamSynchronize(nullptr), "cudaMemset");
  });
}

int tandem_bench_copy(void* to, const void* from, size_t bytes) {
  return guarded([&] {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
  });
}

int tandem_bench_equal(int device, const tandem_bench_pair* pairs, size_t count, int* equal) {
  return guarded([&] {
    const DeviceScope scope(device);
    *equal = tandem::bench::equal({pairs, count}) ? 1 : 0;
  });
}

int tandem_bench_synchronize(int device) {
  return guarded([&] {
    const DeviceScope scope(device);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  });
}

int tandem_bench_profile(int device, int on) {
  return guarded([&] {
    const DeviceScope scope(device);
    check(on != 0 ? cudaProfilerStart() : cudaProfilerStop(), "cudaProfilerStart");
  });
}

int tandem_bench_device_state(int device, char driver[64], int* sm_clock_mhz, int* power_w,
                              unsigned long long* throttle_reasons) {
  return guarded([&] {
    tandem::bench::Nvml nvml;
    nvml.driver_version(driver, 64);
    nvml.select(device);
    *sm_clock_mhz = static_cast<int>(nvml.sm_clock_mhz());
    *power_w = static_cast<int>((nvml.power_mw() + 500) / 1000);
    *throttle_reasons = nvml.throttle_reasons();
  });
}
