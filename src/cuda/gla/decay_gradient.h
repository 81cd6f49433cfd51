// The kernels behind the walks of a backward: the gradient by the decays, and sums over heads.
#pragma once

#include "cuda/gla/row_sums.h"
#include "ops/gla_problem.h"

namespace tandem::cuda {

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
};

void launch_decay_gradient(const DecayGradientParams& params, void* stream);

/// Sums a constant decay's gradient: d_log_decay [H] from `sums`. Reads N, H and splits.
void launch_decay_sum(const DecayGradientParams& params, void* stream);

/// Sums over head groups: to [B,T,HQ,D] = the sums over the H / HQ heads of `from` [B,T,H,D] that
/// share a head of `to`, in their order; zeros at tokens of no sequence.
struct SumHeadsParams {
  DType dtype = DType::kBFloat16;
  std::int64_t B = 0;
  std::int64_t T = 0;
  std::int64_t N = 0;
  int H = 0;
  int HQ = 0;
  int D = 0;
  const std::int32_t* cu_seqlens = nullptr;
  const float* from = nullptr;
  StridedTensor to;
};

void launch_sum_heads(const SumHeadsParams& params, void* stream);

}  // namespace tandem::cuda
