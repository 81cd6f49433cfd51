// What kernels of the second way to run a call do first.
#pragma once

#include "cuda/gla/common/finite_guard.h"

namespace tandem::cuda::gla {

/// Whether the first way was enough. Behind follow_stream().
__device__ inline bool skips(const FiniteGuard& guard) {
  return guard.only_if != nullptr && *guard.only_if == 0;
}

}  // namespace tandem::cuda::gla
