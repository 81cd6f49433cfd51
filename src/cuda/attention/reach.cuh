// Which keys queries see.
#pragma once

#include "ops/attention_problem.h"

namespace tandem::cuda::attention {

/// AttentionMask as int: the query at position p sees the keys [p - left, p + right].
struct Reach {
  static constexpr int kFar = (1 << 30) - 1;
  int left;
  int right;

  explicit __device__ Reach(const AttentionMask& mask)
      : left(clamp(mask.left)), right(clamp(mask.right)) {}

 private:
  static __device__ int clamp(std::int64_t reach) {
    return reach < 0 || reach > kFar ? kFar : static_cast<int>(reach);
  }
};

}  // namespace tandem::cuda::attention
