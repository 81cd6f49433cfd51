// The gradient by the decays of a chunk whose flow is known (row_sums.h).
#pragma once

#include "cuda/gla/common/item.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda::gla {

/// Returns dg_t = F + sum of b before t + sum of a - c from t to the chunk's end, of tokens 2l and
/// 2l+1 in lane l of one warp. `intra`: a - c; `state`: b; `through`: inclusive_sum of a lane's b.
__device__ inline float2 decay_gradient_from_flow(float flow, float2 intra, float2 state,
                                                  float through) {
  const float before = flow + sum_before(through);
  const float behind = sum_behind(intra.x + intra.y);
  return {before + (intra.x + (intra.y + behind)), before + state.x + (intra.y + behind)};
}

/// Whether a decay is a reset, across which nothing flows.
__device__ inline bool forgets(float log_decay) {
  return forget_to_infinity(log_decay) == -__int_as_float(0x7F800000);
}

/// Returns the gradient, or 0 for a reset.
__device__ inline float unless_forgotten(float gradient, float log_decay) {
  return forgets(log_decay) ? 0.0f : gradient;
}

__device__ inline float* gradient_at(const DecayGradient& to, int batch, std::int64_t time,
                                     int head) {
  return to.data + batch * to.batch_stride + time * to.time_stride + head * to.head_stride;
}

}  // namespace tandem::cuda::gla
