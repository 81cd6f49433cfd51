// A backward of heads that share queries and keys: first the states at the ends of every pair of
// chunks, then the gradients of a chunk, over all heads of a group (docs/ops/gla_backward.md).
//
// Of a head whose V is wider than 64 each 64 columns are a member of the group, as if they were a
// head: but for V they share everything, and what is a sum over V adds up as what is one over
// heads.
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/finite_guard.h"
#include "cuda/gla/groups/plan.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// What a launch takes of all B * HQ groups and their segments, so that its states fit into the
/// workspace.
struct GroupSlab {
  int first_group = 0;
  int groups = 0;
  int first_segment = 0;
  int segments = 0;
};

/// A part of K's columns, to the kernels a problem without the others. States from one kernel to
/// the other are panels of 64 x 64 values of 16 bits, [V,K], side by side along K, in the layout of
/// shared memory (parts/panel.cuh).
struct GroupBackwardParams : BackwardMaps {
  GlaBackwardProblem problem;
  std::int64_t state_stride = 0;  // from a head's state in fp32, [K,V] of all parts, to the next
  int value_panels = 1;           // of 64 columns of V
  int members = 1;                // of a group: its heads by value_panels, which are innermost
  int log2_splits = 0;            // of the groups that share a head of q and k; HQ counts groups
  int chunks = 0;                 // per sequence
  int segments = 1;               // per sequence
  int segment_chunks = 0;         // of every segment but the last; even where there are several
  GroupSlab slab = {};
  int slab_chunks = 0;  // of a sequence, in the slab's segments
  int slab_pairs = 0;   // of these
  int multiprocessors = 1;
  // [B,H,segments,K,V]: states before segments, gradients by the states behind them; null: 0.
  const float* entry_states = nullptr;
  const float* entry_gradients = nullptr;
  // [groups, members, slab_pairs, 2] states: S before each pair, and dS behind it without the decay
  // of the token there, if that is of the segment. Where the forward saved S, dS alone.
  void* states = nullptr;
  // Of S that the forward saved [B,sequence_pairs,H,V,K], of the columns of this part.
  bool saved_states = false;
  int sequence_pairs = 0;
  CUtensorMap states_map{};
  float* decay_sums = nullptr;  // [B,H,chunks], of a constant decay
  // Of several splits, [B,T,HQ,sums_stride] from this part's first column on: dq and dk of each.
  float* query_sums = nullptr;
  float* key_sums = nullptr;
  int sums_stride = 0;
  FiniteGuard guard = {};  // of packed sequences as one

  /// States of a pair in `states`.
  constexpr int kinds() const { return saved_states ? 1 : 2; }
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
