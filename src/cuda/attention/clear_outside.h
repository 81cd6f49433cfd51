// Zeros for the gradients of tokens that lie outside every packed sequence.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"

namespace tandem::cuda::attention {

struct ClearOutsideParams {
  const std::int32_t* cu_seqlens = nullptr;  // [N+1]
  std::int64_t N = 0;
  std::int64_t T = 0;
  StridedTensor tensor;  // [1,T,heads,dim], of 16-bit elements
  int heads = 0;
  int dim = 0;
};

/// `name` is the variant's, for errors.
void launch_clear_outside(const char* name, const ClearOutsideParams& params, void* stream);

}  // namespace tandem::cuda::attention
