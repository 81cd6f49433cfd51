// CUDA runtime errors become exceptions; the current device is restored after a call.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tandem/error.h"

namespace tandem::cuda {

/// Throws CudaError("[what] the runtime's text").
inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the error is reported here: the next call starts clean
  throw CudaError("[" + std::string(what) + "] " + cudaGetErrorName(status) + ": " +
                  cudaGetErrorString(status));
}

/// Makes `device` current for a scope, and gives a thread that has no context yet the device's: a
/// tensor map cannot be encoded without one.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    cuda_check(cudaGetDevice(&previous_), "cudaGetDevice");
    // why even if it is current: a current device need not have a context yet (in autograd's
    // threads).
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = device != previous_;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace tandem::cuda
