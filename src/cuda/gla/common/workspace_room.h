// What a backward that makes all gradients at once may take beside inputs and outputs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/gla/common/merged_sequences.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Bytes: 1.1 times the wider of q and v, of all heads, and 16 MB, less what merging takes.
inline std::int64_t workspace_room(const GlaForwardProblem& f, const MergedSequences& merged = {}) {
  const std::int64_t widest = 2 * f.B * f.T * f.H * std::max(f.K, f.V);
  return widest + widest / 10 + (16 << 20) - merged.bytes;
}

}  // namespace tandem::cuda::gla
