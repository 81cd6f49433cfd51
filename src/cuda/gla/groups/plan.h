// What a backward by groups of heads takes, its workspace and its predicted time.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/gla/common/merged_sequences.h"
#include "cuda/gla/common/segment_plan.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

// Columns of K that a kernel takes; wider heads go in parts, each of which makes dq and dk of its
// own columns.
constexpr int kGroupPart = 128;
constexpr int kMostGroupParts = 2;

/// Segments are of whole pairs of chunks where there are several.
struct GroupBackwardPlan : SegmentPlan {
  int parts = 1;              // of K
  int value_panels = 1;       // of 64 columns of V
  int members = 1;            // of a group: its heads by value_panels
  int splits = 1;             // groups that the heads of a head of q and k make: a power of two
  bool saved_states = false;  // of the forward are read
  // Of B * HQ * splits groups and of segments, those of one launch: all, or as many as have room.
  int slab_groups = 0;
  int slab_segments = 1;
  double time = 0.0;  // microseconds, predicted: right enough to compare with those of other ways
  // Offsets into the workspace, 256-byte aligned.
  std::size_t states = 0;      // of both kinds, a part's behind those of the one before
  std::size_t part_bytes = 0;  // of a part's
  std::size_t decay_sums = 0;
  std::size_t query_sums = 0;  // fp32 [B,T,HQ,splits,K], of several splits
  std::size_t key_sums = 0;
  std::size_t workspace_bytes = 0;

  int slab_chunks() const;
  int slab_pairs() const { return (slab_chunks() + 1) / 2; }
};

/// Says why a problem's sizes cannot go by groups; "" when they can.
std::string reason_against_groups(const GlaBackwardProblem& problem);

/// Plans a call. Sequences are cut where that is predicted to be faster. States have 1.1 times the
/// wider of q and v and 16 MB where groups and segments are enough to make them in turn.
GroupBackwardPlan plan_group_backward(const GlaBackwardProblem& problem,
                                      const DeviceProperties& device,
                                      const MergedSequences& merged = {});

}  // namespace tandem::cuda::gla
