// A backward of heads that share queries and keys: first the states at the ends of every pair of
// chunks, then the gradients of a chunk, over all heads of a group (docs/ops/gla_backward.md).
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/groups/plan.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// A part of K's columns, to the kernels a problem without the others. States from one kernel to
/// the other are panels of 64 x 64 values of 16 bits, [V,K], side by side along K, in the layout of
/// shared memory (parts/panel.cuh).
struct GroupBackwardParams : BackwardMaps {
  GlaBackwardProblem problem;
  std::int64_t state_stride = 0;  // from a head's state in fp32, [K,V] of all parts, to the next
  int share = 1;                  // heads of a group
  int chunks = 0;                 // per sequence
  int pairs = 0;                  // of chunks
  int multiprocessors = 1;
  // [B,H,pairs] states: S before each pair, and dS behind it without the decay of the token there.
  void* states = nullptr;
  void* state_gradients = nullptr;
  float* decay_sums = nullptr;  // [B,H,chunks], of a constant decay
};

/// All parts of K, in order.
struct GroupBackwardParts {
  GroupBackwardParams of[kMostGroupParts];
  int count = 1;
};

/// Launches gla_group_states_kernel for all parts side by side, then gla_group_gradients_kernel for
/// each; `name` is the variant's, for errors. Instantiated by groups/instances.cuh.
template <class Element>
void launch_group_backward(const char* name, const GroupBackwardParts& parts, void* stream);
using GroupBackwardLaunch = void (*)(const char* name, const GroupBackwardParts& parts,
                                     void* stream);

}  // namespace tandem::cuda::gla
