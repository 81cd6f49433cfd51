// A backward by chunks: first the states at the ends of every pair of chunks, then every pair's
// gradients on their own. For K, V <= 64, where one CTA can make all gradients of a chunk
// (docs/ops/gla_backward.md).
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/finite_guard.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Factors from the state where a pair's segment begins to S before the pair, and from dS behind
/// the segment to dS behind the pair. As wide as a bulk copy must be.
struct alignas(16) EntryFactors {
  float state;
  float gradient;
};

/// What a segment adds to the state that it began with, [V,K], and that one's factor.
struct alignas(16) SegmentEnd {
  float added[64 * 64];
  float factor;
};

/// What all kernels receive. Panels are 64 x 64 values of 16 bits, [V,K], in the layout of shared
/// memory (parts/panel.cuh); states are rounded to 16 bits, too.
struct ChunkBackwardParams : BackwardMaps {
  GlaBackwardProblem problem;
  FiniteGuard guard;
  int pairs = 0;       // of chunks, per sequence
  unsigned count = 0;  // of pairs, of all sequences and heads
  int multiprocessors = 1;
  int segments = 1;                 // of a sequence, which both directions walk side by side
  int segment_pairs = 0;            // of every segment but the last
  CUtensorMap states_map{};         // of S [B,pairs,H,V,K] before each pair
  void* states = nullptr;           // what these are in, if the forward did not make them
  bool saved_states = false;        // it did
  void* state_gradients = nullptr;  // [B,H,pairs] panels, dS without the decay of the token there
  EntryFactors* entry_factors = nullptr;  // [B,H,pairs], where there are several segments
  SegmentEnd* ends = nullptr;             // [B,H,2,segments], where there are more than two
  float* decay_sums = nullptr;            // [B,H,2 pairs], of a constant decay
};

/// Launches gla_chunk_states_kernel, for more than two segments gla_chunk_entries_kernel, and
/// gla_chunk_gradients_kernel; `name` is the variant's, for errors. Instantiated by
/// chunks/instances.cuh.
template <class Element, bool kReverse>
void launch_chunk_backward(const char* name, const ChunkBackwardParams& params, void* stream);
using ChunkBackwardLaunch = void (*)(const char* name, const ChunkBackwardParams& params,
                                     void* stream);

}  // namespace tandem::cuda::gla
