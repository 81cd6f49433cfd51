// The gradient by the decays, from what the walks of a backward left.
#pragma once

#include "cuda/gla/common/finite_guard.h"
#include "cuda/gla/decay/row_sums.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Row sums and flows of the walks (row_sums.h) -> d_log_decay.
struct DecayGradientParams {
  std::int64_t B = 0;
  std::int64_t T = 0;
  std::int64_t N = 0;
  int H = 0;
  const std::int32_t* cu_seqlens = nullptr;
  DecayTensor log_decay;
  DecayGradient d_log_decay;
  int panels = 1;
  const float* query_rows = nullptr;      // [panels,B,H,T]: q . dq
  const float* key_rows = nullptr;        // [panels,B,H,T]: k . dk, from inside the chunk
  const float* key_state_rows = nullptr;  // [panels,B,H,T]: k . dk, from the state
  const float* flows = nullptr;           // [panels,H,spans,128]
  FlowSpans spans;
  unsigned splits = 1;    // CTAs per (sequence, head)
  float* sums = nullptr;  // [N,H,splits], for a constant decay
  // Whether the kernel before this one on the stream is the walk for dv, of which nothing is
  // needed: then only the end of this kernel waits for it.
  bool beside_walk = false;
  FiniteGuard guard;
};

void launch_decay_gradient(const DecayGradientParams& params, void* stream);

/// Sums a constant decay's gradient, d_log_decay [H], from `sums` [N,H,splits]; of another decay
/// there is nothing to do.
void launch_decay_sum(const GlaBackwardProblem& problem, const float* sums, int splits,
                      void* stream);

}  // namespace tandem::cuda::gla
