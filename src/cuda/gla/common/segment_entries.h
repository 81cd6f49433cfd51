// What there is where segments of sequences begin: the states before them, and the gradients by the
// states behind them.
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/segment_plan.h"
#include "cuda/gla/state/params.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::gla {

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

/// [B,H,segments,K,V], null: 0.
struct SegmentEntries {
  float* states;
  float* gradients;
};

/// Makes them where sequences are cut; else they are what the call gives. `launch` and `name` are
/// the variant's.
SegmentEntries enter_segments(const GlaBackwardProblem& problem, const BackwardMaps& maps,
                              const SegmentPlan& plan, SegmentStatesLaunch launch, const char* name,
                              const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda::gla
