// Instantiates launch_group_backward for one dtype.
#pragma once

#include <algorithm>

#include "cuda/gla/groups/kernel.cuh"
#include "cuda/gla/groups/states.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

/// For K of at most kKeyDim.
template <class Config>
void launch_group_tiles(const char* name, const GroupBackwardParams& params, cudaStream_t stream) {
  static_assert(sizeof(GroupStatesShared<Config>) <= kSharedMemoryPerBlock);
  static_assert(sizeof(GroupShared<Config>) <= kSharedMemoryPerBlock);
  const GlaForwardProblem& problem = params.problem.forward;
  const std::int64_t groups = problem.B * problem.HQ;
  if (groups == 0 || params.share == 0) return;
  const std::int64_t sets = ceil_div(params.share, GroupStatesShape::kHeads);
  launch_kernel(name, gla_group_states_kernel<Config>,
                {.blocks = static_cast<unsigned>(2 * groups * sets),
                 .threads = GroupStatesShape::kThreads,
                 .shared_bytes = sizeof(GroupStatesShared<Config>)},
                stream, params);
  const std::int64_t items = groups * params.chunks;
  if (items == 0) return;
  launch_kernel(name, gla_group_gradients_kernel<Config>,
                {.blocks = static_cast<unsigned>(
                     std::min<std::int64_t>(items, std::max(params.multiprocessors, 1))),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(GroupShared<Config>)},
                stream, params);
}

template <class Element>
void launch_group_backward(const char* name, const GroupBackwardParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (params.problem.forward.K <= 64) {
    launch_group_tiles<GroupConfig<Element, 64>>(name, params, on);
  } else {
    launch_group_tiles<GroupConfig<Element, 128>>(name, params, on);
  }
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_GROUPS(Element)                                                        \
  namespace tandem::cuda::gla {                                                                 \
  template void launch_group_backward<Element>(const char*, const GroupBackwardParams&, void*); \
  }
