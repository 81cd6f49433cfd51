#include "cuda/gla/chunks/run.h"

#include <algorithm>

#include "cuda/gla/decay/gradient.h"

namespace tandem::cuda::gla {

void run_chunk_backward(const GlaBackwardProblem& problem, const ChunkBackwardPlan& plan,
                        ChunkBackwardLaunch launch, const char* name, const FiniteGuard& guard,
                        const DeviceProperties& device, const ScratchMemory& scratch,
                        void* stream) {
  const GlaForwardProblem& f = problem.forward;
  ChunkBackwardParams params{encode_maps(problem), problem, guard};
  params.pairs = plan.pairs;
  params.count = static_cast<unsigned>(f.B * f.H * plan.pairs);
  params.multiprocessors = std::max(device.multiprocessors, 1);
  params.saved_states = plan.saved_states;
  params.states = scratch.at<char>(plan.states);
  params.states_map = plan.saved_states
                          ? map_saved_states(f, 0, f.K)
                          : map_states(f, params.states, f.B * plan.pairs, kChunkBackwardWidth);
  params.state_gradients = scratch.at<char>(plan.state_gradients);
  params.segments = plan.segments;
  params.segment_pairs = plan.segment_pairs;
  params.entry_factors = scratch.at<EntryFactors>(plan.entry_factors);
  if (plan.segments > 2) params.ends = scratch.at<SegmentEnd>(plan.ends);
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  launch(name, params, stream);
  launch_decay_sum(problem, params.decay_sums, 2 * plan.pairs, stream);
}

}  // namespace tandem::cuda::gla
