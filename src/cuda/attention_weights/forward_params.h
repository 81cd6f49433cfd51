// What attention_weights' forward kernel receives.
#pragma once

#include <cuda.h>

#include "cuda/attention_weights/forward_config.h"
#include "cuda/runtime/plan.h"
#include "ops/attention_weights_problem.h"

namespace tandem::cuda::attention_weights {

/// The maps are plan_tile's: q's with 64 rows, k's with forward_stage_keys(...). Columns past their
/// dims read as zero. w starts at a multiple of 16 bytes, its strides and TK are multiples of 8
/// elements. Tokens are below 2^29, tiles of 64 queries of all heads below 2^31, none is 0.
struct ForwardParams {
  AttentionWeightsForwardProblem problem;
  CUtensorMap q_map;
  CUtensorMap k_map;
  int strip = 1;  // tiles that each warpgroup of a CTA takes, one after the other
};

/// CTAs of a call.
inline std::int64_t count_strips(const AttentionSizes& sizes, int strip) {
  return ceil_div(sizes.TQ, 64 * kForwardGroups * strip) * sizes.B * sizes.H;
}

/// Chooses ForwardParams::strip: the one with which a multiprocessor has the fewest turns, the
/// longer of two. Strips of unequal length, as a mask makes them, are one turn long, so that the
/// device evens them out.
inline int choose_strip(const AttentionWeightsForwardProblem& problem, int multiprocessors) {
  constexpr int kMost = 16;
  if (problem.mask.right >= 0) return 1;
  const auto turns = [&](int strip) {
    return ceil_div(count_strips(problem, strip), multiprocessors) * strip;
  };
  int best = 1;
  for (int strip = 2; strip <= kMost; ++strip) {
    if (turns(strip) <= turns(best)) best = strip;
  }
  return best;
}

/// Launches attention_weights_forward_kernel for head dims up to kKeyDim; `name` is the variant's,
/// for errors. Instantiated by forward_instances.cuh.
template <class Element, int kKeyDim>
void launch_forward(const char* name, const ForwardParams& params, void* stream);
using ForwardLaunch = void (*)(const char* name, const ForwardParams& params, void* stream);

}  // namespace tandem::cuda::attention_weights
