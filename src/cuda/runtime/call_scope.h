// What surrounds the launches of a call.
#pragma once

#include <string>

#include "cuda/runtime/cuda_check.h"

namespace tandem::cuda {

/// An NVTX range of this thread in the domain "tandem", which profilers show above the kernels
/// launched inside it. Costs two calls through null pointers where no tool is attached.
class Range {
 public:
  explicit Range(const std::string& name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

/// Opened by every call once its variant is chosen: a range of the variant's name, and the device
/// current until the call returns.
class CallScope {
 public:
  CallScope(const std::string& variant, int device) : range_(variant), guard_(device) {}

 private:
  Range range_;
  DeviceGuard guard_;
};

}  // namespace tandem::cuda
