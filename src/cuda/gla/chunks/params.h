// A backward by chunks: first the states at the ends of every pair of chunks, then every pair's
// gradients on their own. For K, V <= 64, where one CTA can make all gradients of a chunk
// (docs/ops/gla_backward.md).
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/finite_guard.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Factor from the state at a walk's cut to the state of a chunk pair behind it. As wide as a bulk
/// copy must be.
struct alignas(16) CutFactor {
  float value;
};

/// What both kernels receive. Panels are 64 x 64 values of 16 bits, [V,K], in the layout of shared
/// memory (parts/panel.cuh); states are rounded to 16 bits, too.
struct ChunkBackwardParams : BackwardMaps {
  GlaBackwardProblem problem;
  FiniteGuard guard;
  int pairs = 0;       // of chunks, per sequence
  unsigned count = 0;  // of pairs, of all sequences and heads
  int multiprocessors = 1;
  int cut = 0;  // pair before which both walks of a sequence are cut in two; 0: they are whole
  CUtensorMap states_map{};          // of S [B,pairs,H,V,K] before each pair
  bool saved_states = false;         // the forward made them
  void* state_gradients = nullptr;   // [B,H,pairs] panels, dS without the decay of the token there
  CutFactor* cut_factors = nullptr;  // [B,H,pairs], of pairs behind a cut
  float* decay_sums = nullptr;       // [B,H,2 pairs], of a constant decay
};

/// Launches gla_chunk_states_kernel and gla_chunk_gradients_kernel; `name` is the variant's, for
/// errors. Instantiated by chunks/instances.cuh.
template <class Element, bool kReverse>
void launch_chunk_backward(const char* name, const ChunkBackwardParams& params, void* stream);
using ChunkBackwardLaunch = void (*)(const char* name, const ChunkBackwardParams& params,
                                     void* stream);

}  // namespace tandem::cuda::gla
