// Instantiates launch_chunk_backward for one dtype.
#pragma once

#include <algorithm>

#include "cuda/gla/chunks/entries.cuh"
#include "cuda/gla/chunks/gradients.cuh"
#include "cuda/gla/chunks/states.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

template <class Element, bool kReverse>
void launch_chunk_backward(const char* name, const ChunkBackwardParams& params, void* stream) {
  const GlaForwardProblem& problem = params.problem.forward;
  const auto on = static_cast<cudaStream_t>(stream);
  const std::int64_t sequence_heads = problem.B * problem.H;
  if (sequence_heads == 0) return;
  const auto launch_states = [&]<bool kStates, bool kGradients>() {
    constexpr unsigned kDirections = kStates + kGradients;
    launch_kernel(name, gla_chunk_states_kernel<Element, kStates, kGradients>,
                  {.blocks = static_cast<unsigned>(kDirections * sequence_heads),
                   .blocks_y = static_cast<unsigned>(params.segments),
                   .threads = 256,
                   .shared_bytes = sizeof(ChunkStatesShared)},
                  on, params);
    if constexpr (kGradients) {
      if (params.segments <= 2) return;
      using Entries = ChunkEntries<Element>;
      const int warps = std::min(params.segments - 1, Entries::kMostWarps);
      launch_kernel(name, gla_chunk_entries_kernel<Element, kStates>,
                    {.blocks = static_cast<unsigned>(Entries::kSlices * sequence_heads),
                     .blocks_y = kDirections,
                     .threads = static_cast<unsigned>(32 * warps)},
                    on, params);
    }
  };
  constexpr bool kGradients = !kReverse;  // a reverse walk makes its own
  if (!params.saved_states) {
    launch_states.template operator()<true, kGradients>();
  } else if constexpr (kGradients) {
    launch_states.template operator()<false, true>();
  }
  if (params.count == 0) return;
  static_assert(sizeof(ChunkGradientsShared) <= kSharedMemoryPerBlock);
  using Config = ChunkGradientsConfig<Element, kReverse>;
  const unsigned items = kReverse ? static_cast<unsigned>(sequence_heads) : params.count;
  launch_kernel(name, gla_chunk_gradients_kernel<Config>,
                {.blocks = std::min<unsigned>(items, params.multiprocessors),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(ChunkGradientsShared)},
                on, params);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_CHUNKS(Element)                                                       \
  namespace tandem::cuda::gla {                                                                \
  template void launch_chunk_backward<Element, false>(const char*, const ChunkBackwardParams&, \
                                                      void*);                                  \
  template void launch_chunk_backward<Element, true>(const char*, const ChunkBackwardParams&,  \
                                                     void*);                                   \
  }
