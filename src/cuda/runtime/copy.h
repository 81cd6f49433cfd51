// Copies of 16-bit tensors that kernels cannot read or write where they lie.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"

namespace tandem::cuda {

/// A copy of a [B,T,heads,dim] tensor of 16-bit elements, its rows at any even address.
struct CopyParams {
  StridedTensor from;
  StridedTensor to;
  std::int64_t B = 0;
  std::int64_t T = 0;
  int heads = 0;
  int dim = 0;
};

/// `name` is the call's or the variant's, for errors.
void launch_copy(const char* name, const CopyParams& params, void* stream);

/// The same of a [B,T,dim] tensor.
inline void launch_copy(const char* name, const TokenTensor& from, const TokenTensor& to,
                        std::int64_t B, std::int64_t T, int dim, void* stream) {
  const auto strided = [](const TokenTensor& of) {
    return StridedTensor{of.data, of.batch_stride, of.time_stride, 0};
  };
  launch_copy(name, {strided(from), strided(to), B, T, 1, dim}, stream);
}

}  // namespace tandem::cuda
