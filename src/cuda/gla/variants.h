// The table behind cuda::gla_forward, for its tests.
#pragma once

#include <string>
#include <vector>

#include "cuda/gla/forward_params.h"
#include "cuda/runtime/tensor_map.h"

namespace tandem::cuda {

struct ForwardVariant {
  std::string name;
  DType dtype;
  int key_dim;    // largest K
  int value_dim;  // largest V
  bool tma;
  void (*launch)(const char* name, const GlaForwardParams& params, void* stream);

  /// "" when the variant can run the problem, else why not.
  std::string supports(const GlaForwardProblem& problem) const;
};

const std::vector<ForwardVariant>& forward_variants();

struct ForwardTilePlans {
  TensorMapPlan q;
  TensorMapPlan k;
  TensorMapPlan v;
  TensorMapPlan o;
};

/// Tiles of one chunk by 64 columns.
ForwardTilePlans plan_tiles(const GlaForwardProblem& problem);

}  // namespace tandem::cuda
