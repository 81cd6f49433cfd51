#include "cuda/gla/reverse/run.h"

#include "cuda/gla/common/segment_entries.h"
#include "cuda/gla/decay/gradient.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

void run_reverse_backward(const GlaBackwardProblem& problem, const ReversePlan& plan,
                          ReverseBackwardLaunch launch, SegmentStatesLaunch segments,
                          const char* name, const FiniteGuard& guard, const ScratchMemory& scratch,
                          void* stream) {
  ReverseParams params{encode_maps(problem), problem};
  const SegmentEntries entries =
      plan.looks_back ? SegmentEntries{nullptr, scratch.at<float>(plan.entry_gradients)}
                      : enter_segments(problem, params, plan, segments, name, scratch, stream);
  params.looks_back = plan.looks_back;
  params.guard = guard;
  params.chunks = plan.chunks;
  params.segments = plan.segments;
  params.segment_chunks = plan.segment_chunks;
  params.pairs = plan.pairs;
  params.saved_states = plan.saved_states;
  const GlaForwardProblem& f = problem.forward;
  if (plan.saved_states) {
    params.sequence_pairs = static_cast<int>(ceil_div(plan.chunks, 2));
    params.states_map = map_saved_states(f, 0, f.K);
  } else {
    params.sequence_pairs = plan.segments * plan.pairs;
    params.states_map =
        map_states(f, scratch.at<char>(plan.states), f.B * params.sequence_pairs, kReverseWidth);
  }
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  params.entry_states = entries.states;
  params.entry_gradients = entries.gradients;
  launch(name, params, stream);
  launch_decay_sum(problem, params.decay_sums, plan.segments, stream);
}

}  // namespace tandem::cuda::gla
