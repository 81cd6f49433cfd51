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

template <class Element>
void launch_wide_backward(const char* name, const WideBackwardParams& params, void* stream) {
  static_assert(kWideWalksAtOnce * (sizeof(WideStatesShared) + 1024) <=
                kSharedMemoryPerMultiprocessor);
  const auto on = static_cast<cudaStream_t>(stream);
  const int walks = 2 * params.heads * params.value_panels * params.key_parts;
  if (walks == 0) return;
  launch_kernel(name, gla_wide_states_kernel<Element>,
                {.blocks = static_cast<unsigned>(walks),
                 .threads = StateWalkShape::kThreads,
                 .shared_bytes = sizeof(WideStatesShared),
                 .early = kStartsEarly},
                on, params);
  const auto gradients = params.key_parts == 1 ? &launch_wide_gradients<Element, 1>
                                               : &launch_wide_gradients<Element, 2>;
  gradients(name, params, on);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_WIDE(Element)                                                        \
  namespace tandem::cuda::gla {                                                               \
  template void launch_wide_backward<Element>(const char*, const WideBackwardParams&, void*); \
  }
