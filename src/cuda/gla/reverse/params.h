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

/// What gla_segment_entries_kernel turns, in place, from what the segment before each one adds (for
/// gradients the one behind it) into what there is where it begins.
struct SegmentEntriesParams {
  std::int64_t sequence_heads = 0;  // B * H
  std::int64_t state_size = 0;      // K * V
  int segments = 1;
  unsigned slices = 0;                    // of a state, a CTA each; set by the launch
  float* states = nullptr;                // [B,H,segments,K,V]
  float* gradients = nullptr;             // [B,H,segments,K,V]
  const float* log_decay = nullptr;       // [B,H,segments], of whole segments
  const float* initial_state = nullptr;   // [B,H,K,V] or null
  const float* final_gradient = nullptr;  // [B,H,K,V] or null
};
void launch_segment_entries(SegmentEntriesParams params, void* stream);

/// Launches gla_kept_states_kernel and gla_reverse_kernel; `name` is the variant's, for errors.
/// Instantiated by reverse/instances.cuh.
template <class Element, int kKeyDim, int kValueDim>
void launch_reverse_backward(const char* name, const ReverseParams& params, void* stream);
using ReverseBackwardLaunch = void (*)(const char* name, const ReverseParams& params, void* stream);

}  // namespace tandem::cuda::gla
