// How every op's CUDA entry points fail in a build without CUDA.
#pragma once

#include <string>

#include "tandem/device.h"
#include "tandem/error.h"

namespace tandem::cuda {

[[noreturn]] inline void unsupported(const char* op) {
  throw Unsupported("[" + std::string(op) +
                    "] tensors on a CUDA device: " + cuda_unavailable_reason());
}

}  // namespace tandem::cuda
