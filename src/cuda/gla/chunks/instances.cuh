// Instantiates launch_chunk_backward for one dtype.
#pragma once

#include <algorithm>

#include "cuda/gla/chunks/gradients.cuh"
#include "cuda/gla/chunks/states.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

template <class Element>
void launch_chunk_backward(const char* name, const ChunkBackwardParams& params, void* stream) {
  const GlaForwardProblem& problem = params.problem.forward;
  const auto on = static_cast<cudaStream_t>(stream);
  const std::int64_t sequence_heads = problem.B * problem.H;
  if (sequence_heads == 0) return;
  launch_kernel(name, gla_chunk_states_kernel<Element>,
                {.blocks = static_cast<unsigned>(2 * sequence_heads * (params.cut > 0 ? 2 : 1)),
                 .threads = 256,
                 .shared_bytes = sizeof(ChunkStatesShared)},
                on, params);
  if (params.count == 0) return;
  static_assert(sizeof(ChunkGradientsShared) <= kSharedMemoryPerBlock);
  launch_kernel(name, gla_chunk_gradients_kernel<Element>,
                {.blocks = std::min<unsigned>(params.count, params.multiprocessors),
                 .threads = ChunkGradientsConfig::kThreads,
                 .shared_bytes = sizeof(ChunkGradientsShared)},
                on, params);
}

}  // namespace tandem::cuda::gla

#define TANDEM_INSTANCES_CHUNKS(Element)                                                        \
  namespace tandem::cuda::gla {                                                                 \
  template void launch_chunk_backward<Element>(const char*, const ChunkBackwardParams&, void*); \
  }
