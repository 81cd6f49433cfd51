// A backward by one walk from the last token to the first, which makes all gradients, over states
// that a walk before it left behind (docs/ops/gla_backward_cuda.md).
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/finite_guard.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// What both kernels receive.
struct ReverseParams : BackwardMaps {
  GlaBackwardProblem problem;
  int chunks = 0;          // of 64 tokens, per sequence
  int segments = 1;        // per sequence, each walked by a CTA
  int segment_chunks = 0;  // of every segment but the last
  int pairs = 0;           // of chunks, per segment
  int sequence_pairs = 0;  // of all segments of a sequence
  // [B,H,segments,K,V]: states before segments, gradients by the states behind them; null: 0.
  const float* entry_states = nullptr;
  float* entry_gradients = nullptr;
  // gla_kept_states_kernel makes the gradients, and needs no states.
  bool looks_back = false;
  // Of states [B,sequence_pairs,H,V,K] before each pair of chunks, rounded to 16 bits.
  CUtensorMap states_map{};
  bool saved_states = false;    // the forward made them
  float* decay_sums = nullptr;  // [B,H,segments], of a constant decay
  FiniteGuard guard = {};       // of merged sequences
};

/// Launches gla_kept_states_kernel and gla_reverse_kernel; `name` is the variant's, for errors.
/// Instantiated by reverse/instances.cuh.
template <class Element, int kKeyDim, int kValueDim>
void launch_reverse_backward(const char* name, const ReverseParams& params, void* stream);
using ReverseBackwardLaunch = void (*)(const char* name, const ReverseParams& params, void* stream);

}  // namespace tandem::cuda::gla
