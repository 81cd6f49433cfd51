// For tests of the host side of ops on CUDA, which plan calls and launch nothing.
#pragma once

#include <cstdint>

#include "tandem/tandem.h"

namespace tandem::cuda {

inline const DeviceProperties kDevice = DeviceProperties::h200();

/// A contiguous tensor at an aligned address that nothing reads, another for each number.
inline TensorView view(int address, const Dims& shape, DType dtype = DType::kBFloat16) {
  return TensorView::contiguous(reinterpret_cast<void*>(std::uintptr_t{1} * address << 44), dtype,
                                shape, Device::cuda());
}

}  // namespace tandem::cuda
