// What a backward in one reverse walk takes, its workspace and its predicted time.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/gla/common/merged_sequences.h"
#include "cuda/gla/common/segment_plan.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

constexpr int kReverseWidth = 128;  // the widest K and V; states in the workspace are padded to it

struct ReversePlan : SegmentPlan {
  int pairs = 0;              // of chunks, per segment
  bool saved_states = false;  // of the forward are read; segments are then of whole pairs
  // Each segment reads what it remembers: entries of gradients are not summed, of states not made.
  bool looks_back = false;
  double time = 0.0;  // microseconds, predicted: right enough to compare with walks (walk/plan.h)
  // Offsets into the workspace, 256-byte aligned.
  std::size_t states = 0;
  std::size_t decay_sums = 0;
  std::size_t workspace_bytes = 0;
};

/// Says why a problem's sizes cannot go in one reverse walk; "" when they can.
std::string reason_against_reverse(const GlaBackwardProblem& problem);

/// Plans a call; sequences are cut where that is predicted to be faster and the workspace stays
/// within 1.1 times the wider of q and v, and 16 MB.
ReversePlan plan_reverse_backward(const GlaBackwardProblem& problem, const DeviceProperties& device,
                                  const MergedSequences& merged = {});

}  // namespace tandem::cuda::gla
