// What follows walks, or groups in parts, whose heads share a query and key head or are summed.
#pragma once

#include "cuda/gla/common/finite_guard.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

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
  FiniteGuard guard;
};

/// At most eight CTAs per multiprocessor.
void launch_sum_heads(const SumHeadsParams& params, int multiprocessors, void* stream);

}  // namespace tandem::cuda::gla
