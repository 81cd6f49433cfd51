// The sum of a split product's slices.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"

namespace tandem::cuda::gemm {

/// result = (accumulate ? result : 0) + the sum of the slices, in one order.
struct SumSlicesParams {
  const float* partial_sums = nullptr;  // [slices,rows,columns]
  int slices = 0;
  std::int64_t rows = 0;
  int columns = 0;
  MatrixTensor result;
  bool fp32 = false;  // the result, else it is Element's
  bool accumulate = false;
};
/// `name` is the op's, for errors. Instantiated in sum_slices.cu.
template <class Element>
void launch_sum_slices(const char* name, const SumSlicesParams& params, void* stream);

}  // namespace tandem::cuda::gemm
