// Instantiates launch_reverse_backward for one dtype.
#pragma once

#include "cuda/gla/reverse/kernel.cuh"
#include "cuda/gla/reverse/states.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

template <class Element, int kKeyDim, int kValueDim>
void launch_reverse_backward(const char* name, const ReverseParams& params, void* stream) {
  using States = KeptStatesConfig<Element, kKeyDim, kValueDim, false>;
  using Gradients = ReverseConfig<Element, kKeyDim, kValueDim>;
  const GlaForwardProblem& problem = params.problem.forward;
  const auto on = static_cast<cudaStream_t>(stream);
  const auto segments = static_cast<unsigned>(problem.B * problem.H * params.segments);
  if (segments == 0) return;
  static_assert(sizeof(KeptStatesShared<States>) <= kSharedMemoryPerBlock);
  static_assert(sizeof(ReverseShared<Gradients>) <= kSharedMemoryPerBlock);
  const unsigned kinds = (params.saved_states ? 0 : 1) + (params.looks_back ? 1 : 0);
  if (kinds > 0) {
    launch_kernel(name, gla_kept_states_kernel<Element, kKeyDim, kValueDim>,
                  {.blocks = segments,
                   .blocks_y = kinds,
                   .threads = States::kThreads,
                   .shared_bytes = sizeof(KeptStatesShared<States>)},
                  on, params);
  }
  launch_kernel(name, gla_reverse_kernel<Gradients>,
                {.blocks = segments,
                 .threads = Gradients::kThreads,
                 .shared_bytes = sizeof(ReverseShared<Gradients>)},
                on, params);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_REVERSE(Element)                                                     \
  namespace tandem::cuda::gla {                                                               \
  template void launch_reverse_backward<Element, 128, 128>(const char*, const ReverseParams&, \
                                                           void*);                            \
  }
