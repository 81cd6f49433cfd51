// The table behind cuda::attention_forward, for its tests.
#pragma once

#include <string>
#include <vector>

#include "ops/attention_problem.h"

namespace tandem::cuda::attention {

/// One way to run a forward. Tried in the table's order.
struct ForwardVariant {
  std::string name;
  DType dtype;
  int key_dim;    // columns of K of a tile
  int value_dim;  // columns of V of a tile
};

const std::vector<ForwardVariant>& forward_variants();

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const AttentionForwardProblem& problem);

}  // namespace tandem::cuda::attention
