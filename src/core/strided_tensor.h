// The layout that activations share once their arguments are checked.
#pragma once

#include <cstdint>

namespace tandem {

/// A [B,T,heads,dim] tensor whose innermost stride is 1. Strides in elements.
struct StridedTensor {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t time_stride = 0;
  std::int64_t head_stride = 0;
};

/// A [B,T,dim] tensor whose innermost stride is 1. Strides in elements.
struct TokenTensor {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t time_stride = 0;
};

/// A matrix whose innermost stride is 1. Strides in elements.
struct MatrixTensor {
  void* data = nullptr;
  std::int64_t row_stride = 0;
};

}  // namespace tandem
