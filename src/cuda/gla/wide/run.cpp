#include "cuda/gla/wide/run.h"

#include <algorithm>

#include "cuda/gla/decay/gradient.h"
#include "tandem/device.h"

namespace tandem::cuda::gla {

void run_wide_backward(const GlaBackwardProblem& problem, const WideBackwardPlan& plan,
                       WideBackwardLaunch launch, const char* name, const DeviceProperties& device,
                       const ScratchMemory& scratch, void* stream) {
  WideBackwardParams params{encode_maps(problem), problem};
  params.spans = plan.spans;
  params.value_panels = plan.value_panels;
  params.key_parts = plan.key_parts;
  params.multiprocessors = device.multiprocessors;
  params.decays = scratch.at<WideDecay>(plan.decays);
  params.states = scratch.at<char>(plan.states);
  params.state_gradients = scratch.at<char>(plan.state_gradients);
  if (problem.d_log_decay.data) {
    params.query_rows = scratch.at<float>(plan.query_rows);
    params.key_rows = scratch.at<float>(plan.key_rows);
    params.key_state_rows = scratch.at<float>(plan.key_state_rows);
    params.decay_sums = scratch.at<float>(plan.decay_sums);
  }
  const int heads = static_cast<int>(problem.forward.B * problem.forward.H);
  for (int head = 0; head < heads; head += plan.slab_heads) {
    params.first_head = head;
    params.heads = std::min(plan.slab_heads, heads - head);
    launch_wide_decays(params, stream);
    launch(name, params, stream);
    if (problem.d_log_decay.data) launch_wide_decay_gradient(params, stream);
  }
  launch_decay_sum(problem, params.decay_sums, plan.spans, stream);
}

}  // namespace tandem::cuda::gla
