// Instantiates launch_wide_backward for one dtype.
#pragma once

#include <algorithm>

#include "cuda/gla/wide/kernel.cuh"
#include "cuda/gla/wide/states.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

// Started early all together take 3 to 15 % longer (docs/ops/gla_backward.log.md).
constexpr bool kStartsEarly = false;

template <class Element>
void launch_wide_states(const char* name, const WideBackwardParams& params, WideWalks walks,
                        cudaStream_t stream) {
  static_assert(kWideWalksAtOnce * (sizeof(WideStatesShared) + 1024) <=
                kSharedMemoryPerMultiprocessor);
  const int of_head =
      (walks == WideWalks::kBoth ? 2 : 1) * (kWideColumns / kWideStateKeys) * params.value_panels;
  launch_kernel(name, gla_wide_states_kernel<Element>,
                {.blocks = static_cast<unsigned>(params.heads * of_head),
                 .threads = WideStatesShape::kThreads,
                 .shared_bytes = sizeof(WideStatesShared),
                 .early = kStartsEarly},
                stream, WideStatesParams{params, walks});
}

template <class Element>
void launch_wide_backward(const char* name, const WideBackwardParams& params, void* stream) {
  using Config = WideConfig<Element>;
  static_assert(sizeof(WideShared<Config>) <= kSharedMemoryPerBlock);
  const auto on = static_cast<cudaStream_t>(stream);
  const GlaForwardProblem& f = params.problem.forward;
  if (params.heads == 0 || params.value_panels == 0) return;
  if (params.flows == nullptr) {
    launch_wide_states<Element>(name, params, WideWalks::kBoth, on);
  } else {
    launch_wide_states<Element>(name, params, WideWalks::kForward, on);
    launch_wide_states<Element>(name, params, WideWalks::kReverse, on);
  }
  const std::int64_t items = std::int64_t{params.heads} * ceil_div(f.T, kWideRows) *
                             (2 + ceil_div(64 * params.value_panels, kWideColumns));
  if (items == 0) return;
  launch_kernel(name, gla_wide_gradients_kernel<Config>,
                {.blocks = static_cast<unsigned>(
                     std::min<std::int64_t>(items, std::max(params.multiprocessors, 1))),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(WideShared<Config>),
                 .early = kStartsEarly},
                on, params);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_WIDE(Element)                                                        \
  namespace tandem::cuda::gla {                                                               \
  template void launch_wide_backward<Element>(const char*, const WideBackwardParams&, void*); \
  }
