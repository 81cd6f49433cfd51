// Element-wise passes around products: operands of other types or alignment, an operand in two
// terms, and the sum of slices.
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
  TokenTensor low;  // of a split: what rounding to `to` leaves, times `low_scale`
  float low_scale = 1.0f;
};
/// Copy 16 bits to 16 bits, widen to fp32, narrow back, or split fp32 into two 16-bit tensors.
/// `name` is the op's, for errors. Instantiated in convert.cu, as is launch_sum.
template <class Element>
void launch_copy(const char* name, const ConvertParams& params, void* stream);
template <class Element>
void launch_widen(const char* name, const ConvertParams& params, void* stream);
template <class Element>
void launch_narrow(const char* name, const ConvertParams& params, void* stream);
template <class Element>
void launch_split(const char* name, const ConvertParams& params, void* stream);

/// A sum of the slices of a product, in their order.
struct SumParams {
  const float* partial_sums = nullptr;  // [slices,rows,columns]
  int slices = 0;
  int rows = 0;
  int columns = 0;
  MatrixTensor sum;
};
template <class Element>
void launch_sum(const char* name, const SumParams& params, void* stream);

}  // namespace tandem::cuda::gemm
