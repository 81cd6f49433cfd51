// What kernels receive of heads, from a problem. Host only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/projection/heads_params.h"
#include "cuda/runtime/plan.h"
#include "ops/projection_problem.h"

namespace tandem::cuda::projection {

inline RopeParams rope_params(const Rope& from) {
  RopeParams to;
  to.cos = from.cos;
  to.sin = from.sin;
  to.fp32 = from.dtype == DType::kFloat32;
  to.interleaved = from.interleaved;
  to.width = from.width;
  to.positions = static_cast<int>(std::min<std::int64_t>(from.positions, kMaxIndex));
  to.row_positions = from.row_positions;
  to.cu_seqlens = from.cu_seqlens;
  to.N = static_cast<int>(std::min<std::int64_t>(from.N, kMaxIndex - 1));
  to.length = static_cast<int>(std::min<std::int64_t>(from.length, kMaxIndex));
  return to;
}

/// All but what depends on a tile.
inline HeadSegment head_segment(const HeadFinish& from) {
  HeadSegment to;
  to.norm_weight = from.norm_weight;
  to.norm_fp32 = from.norm_weight_dtype == DType::kFloat32;
  to.rotates = from.rotates;
  to.eps = static_cast<float>(from.eps);
  return to;
}

}  // namespace tandem::cuda::projection
