// The table behind cuda::attention_backward, for its tests.
#pragma once

#include <string>
#include <vector>

#include "cuda/attention/backward_params.h"

namespace tandem::cuda::attention {

/// One way to run a backward. Tried in the table's order.
struct BackwardVariant {
  std::string name;
  DType dtype;
  int key_dim;    // columns of K of a tile
  int value_dim;  // columns of V of a tile
  bool copies;    // what the kernels cannot read or write where it lies
  AttentionBackwardLaunch launch;
};

const std::vector<BackwardVariant>& backward_variants();

/// "" when the variant can run the problem, else why not. `misfit` is its operands'.
std::string reason_against(const BackwardVariant& variant, const AttentionBackwardProblem& problem,
                           const std::string& misfit);

}  // namespace tandem::cuda::attention
