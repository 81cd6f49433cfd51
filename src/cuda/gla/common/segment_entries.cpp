#include "cuda/gla/common/segment_entries.h"

namespace tandem::cuda::gla {

SegmentEntries enter_segments(const GlaBackwardProblem& problem, const BackwardMaps& maps,
                              const SegmentPlan& plan, SegmentStatesLaunch launch, const char* name,
                              const ScratchMemory& scratch, void* stream) {
  const GlaForwardProblem& f = problem.forward;
  if (plan.segments == 1) {
    return {const_cast<float*>(f.initial_state), const_cast<float*>(problem.d_final_state)};
  }
  const SegmentEntries made{scratch.at<float>(plan.entry_states),
                            scratch.at<float>(plan.entry_gradients)};
  SegmentStatesParams segments;
  StateParams& states = segments.states;
  states.tma = true;
  states.problem = f;
  states.segments = plan.segments;
  states.segment_chunks = plan.segment_chunks;
  states.forgets = true;
  states.total_log_decay = scratch.at<float>(plan.log_decay);
  states.k_map = maps.k_map;
  states.v_map = maps.v_map;
  states.states = made.states;
  states.shift = 1;
  StateParams& gradients = segments.gradients = states;
  gradients.scale = f.scale;
  gradients.k_map = maps.q_map;
  gradients.v_map = maps.d_o_map;
  gradients.states = made.gradients;
  gradients.shift = -1;
  gradients.first_total = plan.segments - 1;  // which the other direction does not make
  launch(name, segments, stream);

  SegmentEntriesParams entries;
  entries.sequence_heads = f.B * f.H;
  entries.state_size = std::int64_t{f.K} * f.V;
  entries.segments = plan.segments;
  entries.states = made.states;
  entries.gradients = made.gradients;
  entries.log_decay = states.total_log_decay;
  entries.initial_state = f.initial_state;
  entries.final_gradient = problem.d_final_state;
  launch_segment_entries(entries, stream);
  return made;
}

}  // namespace tandem::cuda::gla
