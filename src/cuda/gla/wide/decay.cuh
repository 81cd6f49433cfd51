// The decays that the kernels for wide heads share.
#pragma once

#include "cuda/gla/wide/params.h"
#include "cuda/parts/decay.cuh"

namespace tandem::cuda::gla {

/// Sums of decays, in base 2, of a chunk of 64 tokens (parts/decay.cuh).
struct alignas(16) WideDecay {
  float within[64];  // token j reaches token i with factor 2^(within[i] - within[j])
  float before[64];  // from the chunk's begin to the token, with its own
  float behind[64];  // from the token to the chunk's end
  float total;
  float next;  // of the token behind the chunk
};
static_assert(sizeof(WideDecay) == kWideDecayBytes);

}  // namespace tandem::cuda::gla
