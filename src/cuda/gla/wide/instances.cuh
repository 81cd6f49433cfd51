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
  const int of_head = (walks == WideWalks::kBoth ? 2 : 1) * params.key_parts * params.value_panels;
  launch_kernel(name, gla_wide_states_kernel<Element>,
                {.blocks = static_cast<unsigned>(params.heads * of_head),
                 .threads = StateWalkShape::kThreads,
                 .shared_bytes = sizeof(WideStatesShared),
                 .early = kStartsEarly},
                stream, WideStatesParams{params, walks});
}

template <class Element, int kKeyParts>
void launch_wide_gradients(const char* name, const WideBackwardParams& params,
                           cudaStream_t stream) {
  using Config = WideConfig<Element, kKeyParts>;
  static_assert(sizeof(WideShared<Config>) <= kSharedMemoryPerBlock);
  const std::int64_t items =
      std::int64_t{params.heads} * ceil_div(params.problem.forward.T, kWideRows) * params.kinds();
  if (items == 0) return;
  launch_kernel(name, gla_wide_gradients_kernel<Config>,
                {.blocks = static_cast<unsigned>(
                     std::min<std::int64_t>(items, std::max(params.multiprocessors, 1))),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(WideShared<Config>),
                 .early = kStartsEarly},
                stream, params);
}

template <class Element>
void launch_wide_backward(const char* name, const WideBackwardParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (params.heads == 0 || params.value_panels == 0) return;
  if (params.flows == nullptr) {
    launch_wide_states<Element>(name, params, WideWalks::kBoth, on);
  } else {
    launch_wide_states<Element>(name, params, WideWalks::kForward, on);
    launch_wide_states<Element>(name, params, WideWalks::kReverse, on);
  }
  const auto gradients = params.key_parts == 1 ? &launch_wide_gradients<Element, 1>
                                               : &launch_wide_gradients<Element, 2>;
  gradients(name, params, on);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_WIDE(Element)                                                        \
  namespace tandem::cuda::gla {                                                               \
  template void launch_wide_backward<Element>(const char*, const WideBackwardParams&, void*); \
  }
