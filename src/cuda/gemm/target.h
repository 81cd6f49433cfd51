// Where a product's result goes.
#pragma once

#include <cuda.h>

#include "core/strided_tensor.h"

namespace tandem::cuda::gemm {

/// A result [rows,columns], written by TMA in 16 bits, else element by element.
struct Target {
  CUtensorMap map;
  bool by_tma = false;
  bool fp32 = false;
  MatrixTensor matrix;  // null: nowhere
};

}  // namespace tandem::cuda::gemm
