// A backward by one walk from the last token to the first, which makes all gradients, over states
// that a walk before it left behind (docs/ops/gla_backward_cuda.md).
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// What both kernels receive.
struct ReverseParams : BackwardMaps {
  GlaBackwardProblem problem;
  int chunks = 0;  // of 64 tokens, per sequence
  int pairs = 0;   // of chunks, per sequence
  // [B,H,pairs] states before each pair of chunks, St [V,K] rounded to 16 bits, in the layout of
  // shared memory: panels of 64 columns of K (parts/panel.cuh).
  void* states = nullptr;
  float* decay_sums = nullptr;  // [B,H], of a constant decay
};

/// Launches gla_kept_states_kernel and gla_reverse_kernel; `name` is the variant's, for errors.
/// Instantiated by reverse/instances.cuh.
template <class Element, int kKeyDim, int kValueDim>
void launch_reverse_backward(const char* name, const ReverseParams& params, void* stream);
using ReverseBackwardLaunch = void (*)(const char* name, const ReverseParams& params, void* stream);

}  // namespace tandem::cuda::gla
