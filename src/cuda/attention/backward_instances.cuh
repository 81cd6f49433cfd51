// Instantiates launch_attention_backward for one dtype.
#pragma once

#include <algorithm>

#include "cuda/attention/backward.cuh"
#include "cuda/attention/backward_parts.cuh"
#include "cuda/attention/backward_queries.cuh"
#include "cuda/attention/backward_rows.cuh"
#include "cuda/attention/backward_wide_queries.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention {

template <class Element, int kKeyDim, int kValueDim>
void launch_attention_backward(const char* name, const AttentionBackwardParams& params,
                               void* stream) {
  using Config = BackwardConfig<Element, kKeyDim, kValueDim>;
  static_assert(sizeof(BackwardShared<Config>) <= kSharedMemoryPerBlock);
  const AttentionForwardProblem& problem = params.problem.forward;
  const auto on = static_cast<cudaStream_t>(stream);
  const auto tiles = static_cast<unsigned>(params.query_tiles * problem.H);
  const auto items = static_cast<unsigned>(params.key_blocks * problem.HKV * params.parts.count());
  launch_kernel(name, attention_backward_rows_kernel<Config>,
                {.blocks = std::max(tiles, 1u), .threads = Config::kRowsThreads}, on, params);
  if (items > 0) {
    launch_kernel(name, attention_backward_kernel<Config>,
                  {.blocks = std::min(items, static_cast<unsigned>(params.multiprocessors)),
                   .threads = Config::kThreads,
                   .shared_bytes = sizeof(BackwardShared<Config>)},
                  on, params);
    if (params.parts.count() > 1) {
      const std::int64_t eights =
          problem.B * problem.TK * problem.HKV * ceil_div(std::max(problem.K, problem.V), 8);
      launch_kernel(name, attention_backward_parts_kernel<Element>,
                    {.blocks = static_cast<unsigned>(ceil_div(eights, kPartsThreads)),
                     .blocks_y = 2,
                     .threads = kPartsThreads},
                    on, params);
    }
  }
  if (tiles == 0 || params.problem.dq.data == nullptr) return;
  if constexpr (Config::kMakesSums) {
    launch_kernel(name, attention_backward_queries_kernel<Config>,
                  {.blocks = tiles, .threads = Config::kWorkers}, on, params);
  } else {
    static_assert(sizeof(WideQueriesShared<Config>) <= kSharedMemoryPerBlock);
    const std::int64_t wide_tiles =
        backward_blocks(problem.TQ, problem.N, problem.cu_seqlens_q != nullptr, kWideQueries);
    launch_kernel(name, attention_backward_wide_queries_kernel<Config>,
                  {.blocks = static_cast<unsigned>(wide_tiles * problem.H),
                   .threads = Config::kThreads,
                   .shared_bytes = sizeof(WideQueriesShared<Config>)},
                  on, params);
  }
}

}  // namespace tandem::cuda::attention

#define TANDEM_BACKWARD_OF_DIMS(Element, kKeyDim, kValueDim)            \
  template void launch_attention_backward<Element, kKeyDim, kValueDim>( \
      const char*, const AttentionBackwardParams&, void*);
#define TANDEM_INSTANCES_BACKWARD(Element)   \
  namespace tandem::cuda::attention {        \
  TANDEM_BACKWARD_OF_DIMS(Element, 64, 64)   \
  TANDEM_BACKWARD_OF_DIMS(Element, 128, 128) \
  }
#define TANDEM_INSTANCES_BACKWARD_OTHER(Element) \
  namespace tandem::cuda::attention {            \
  TANDEM_BACKWARD_OF_DIMS(Element, 96, 96)       \
  TANDEM_BACKWARD_OF_DIMS(Element, 192, 128)     \
  }
#define TANDEM_INSTANCES_BACKWARD_WIDE(Element) \
  namespace tandem::cuda::attention {           \
  TANDEM_BACKWARD_OF_DIMS(Element, 192, 192)    \
  TANDEM_BACKWARD_OF_DIMS(Element, 256, 256)    \
  }
