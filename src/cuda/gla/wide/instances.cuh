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

template <class Element, int kWalks>
void launch_wide_states(const char* name, const WideBackwardParams& params, cudaStream_t stream) {
  using Shape = StateWalkShape<kWalks>;
  using Shared = StateWalkShared<kWideKeys, kWalks>;
  static_assert(Shape::kCtas * (sizeof(Shared) + 1024) <= kSharedMemoryPerMultiprocessor);
  const int ctas =
      2 * params.heads * params.key_parts * state_walk_ctas(params.value_panels, kWalks);
  launch_kernel(name, gla_wide_states_kernel<Element, kWalks>,
                {.blocks = static_cast<unsigned>(ctas),
                 .threads = Shape::kThreads,
                 .shared_bytes = sizeof(Shared),
                 .early = kStartsEarly},
                stream, params);
}

template <class Element>
void launch_wide_backward(const char* name, const WideBackwardParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (params.heads == 0 || params.value_panels == 0 || params.key_parts == 0) return;
  const std::int64_t walks =
      std::int64_t{2} * params.heads * params.key_parts * params.value_panels;
  const auto states = state_walks_of_cta(walks, params.value_panels, params.multiprocessors) == 1
                          ? &launch_wide_states<Element, 1>
                          : &launch_wide_states<Element, kManyStateWalks>;
  states(name, params, on);
  const auto gradients = params.key_parts == 1 ? &launch_wide_gradients<Element, 1>
                                               : &launch_wide_gradients<Element, 2>;
  gradients(name, params, on);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_WIDE(Element)                                                        \
  namespace tandem::cuda::gla {                                                               \
  template void launch_wide_backward<Element>(const char*, const WideBackwardParams&, void*); \
  }
