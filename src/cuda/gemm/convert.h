// Element-wise passes around products: operands of other types, and sums of slices.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"

namespace tandem::cuda::gemm {

/// A copy of [B,T,D] element by element.
struct ConvertParams {
  std::int64_t B = 0;
  std::int64_t T = 0;
  int D = 0;
  TokenTensor from;
  TokenTensor to;
};
/// Widen to fp32, or narrow back. `name` is the op's, for errors. Instantiated in convert.cu, as is
/// launch_sum_slices.
template <class Element>
void launch_widen(const char* name, const ConvertParams& params, void* stream);
template <class Element>
void launch_narrow(const char* name, const ConvertParams& params, void* stream);

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
template <class Element>
void launch_sum_slices(const char* name, const SumSlicesParams& params, void* stream);

}  // namespace tandem::cuda::gemm
