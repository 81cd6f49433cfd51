// What every fp64 definition reads tensors with.
#pragma once

#include <cstdint>

#include "core/float16.h"
#include "tandem/tensor.h"

namespace tandem::reference {

inline double element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kBFloat16: return to_float(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16: return to_float(static_cast<const Float16*>(data)[index]);
    default: return static_cast<const float*>(data)[index];
  }
}

}  // namespace tandem::reference
