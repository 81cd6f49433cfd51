// Copies of activations that kernels cannot read or write where they lie.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"

namespace tandem::cuda::attention {

/// A copy of a [B,T,heads,dim] tensor of 16-bit elements.
struct CopyParams {
  StridedTensor from;
  StridedTensor to;
  std::int64_t B = 0;
  std::int64_t T = 0;
  int heads = 0;
  int dim = 0;
};

/// `name` is the variant's, for errors.
void launch_copy(const char* name, const CopyParams& params, void* stream);

}  // namespace tandem::cuda::attention
