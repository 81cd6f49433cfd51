// Instantiates launch_group_backward for one dtype.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/gla/groups/kernel.cuh"
#include "cuda/gla/groups/states.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

/// Launches gla_group_gradients_kernel.
template <class Config>
void launch_group_gradients(const char* name, const GroupBackwardParams& params, std::int64_t items,
                            cudaStream_t stream) {
  static_assert(sizeof(GroupShared<Config>) <= kSharedMemoryPerBlock);
  launch_kernel(name, gla_group_gradients_kernel<Config>,
                {.blocks = static_cast<unsigned>(
                     std::min<std::int64_t>(items, std::max(params.multiprocessors, 1))),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(GroupShared<Config>)},
                stream, params);
}

/// Launches gla_group_states_kernel.
template <class Config, int kParts, int kWalks>
void launch_group_states(const char* name, const GroupBackwardParts& parts, cudaStream_t stream) {
  using Shape = StateWalkShape<kWalks>;
  using Shared = StateWalkShared<Config::kKeyDim, kWalks>;
  static_assert(Shape::kCtas * sizeof(Shared) <= kSharedMemoryPerBlock);
  const GroupBackwardParams& params = parts.of[0];
  const std::int64_t ctas = std::int64_t{params.slab.groups} * params.slab.segments *
                            state_walk_ctas(params.members, kWalks);
  launch_kernel(name, gla_group_states_kernel<Config, kParts, kWalks>,
                {.blocks = static_cast<unsigned>(params.kinds() * kParts * ctas),
                 .threads = Shape::kThreads,
                 .shared_bytes = sizeof(Shared)},
                stream, parts);
}

/// For kParts parts of at most kKeyDim columns.
template <class Element, int kKeyDim, int kParts>
void launch_group_tiles(const char* name, const GroupBackwardParts& parts, cudaStream_t stream) {
  using Config = GroupConfig<Element, kKeyDim>;
  static_assert(sizeof(GroupBackwardParts) <= 4096);  // what a kernel may receive
  const GroupBackwardParams& params = parts.of[0];    // but for its columns of K, as all
  const std::int64_t groups = params.slab.groups;
  if (groups == 0 || params.members == 0) return;
  const std::int64_t walks =
      params.kinds() * kParts * groups * params.slab.segments * params.members;
  const auto states = state_walks_of_cta(walks, params.members, params.multiprocessors) == 1
                          ? &launch_group_states<Config, kParts, 1>
                          : &launch_group_states<Config, kParts, kManyStateWalks>;
  states(name, parts, stream);
  const std::int64_t items = groups * params.slab_chunks;
  if (items == 0) return;
  const auto launch_parts = [&](auto splits) {
    launch_group_gradients<GroupConfig<Element, kKeyDim, false, splits()>>(name, params, items,
                                                                           stream);
    static_assert(kParts <= 2);
    if constexpr (kParts > 1) {
      launch_group_gradients<GroupConfig<Element, kKeyDim, true, splits()>>(name, parts.of[1],
                                                                            items, stream);
    }
  };
  if (params.log2_splits > 0) {
    launch_parts(std::true_type{});
  } else {
    launch_parts(std::false_type{});
  }
}

template <class Element>
void launch_group_backward(const char* name, const GroupBackwardParts& parts, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (parts.count > 1) {
    launch_group_tiles<Element, kGroupPart, kMostGroupParts>(name, parts, on);
  } else if (parts.of[0].problem.forward.K <= 64) {
    launch_group_tiles<Element, 64, 1>(name, parts, on);
  } else {
    launch_group_tiles<Element, kGroupPart, 1>(name, parts, on);
  }
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_GROUPS(Element)                                                       \
  namespace tandem::cuda::gla {                                                                \
  template void launch_group_backward<Element>(const char*, const GroupBackwardParts&, void*); \
  }
