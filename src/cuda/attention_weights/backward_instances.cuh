// Instantiates launch_backward of attention_weights for one dtype.
#pragma once

#include "cuda/attention_weights/backward_keys.cuh"
#include "cuda/attention_weights/backward_queries.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention_weights {

/// As many CTAs as there are items, or multiprocessors.
template <class Config>
void launch_items(const char* name, void (*kernel)(BackwardParams), std::int64_t items,
                  const BackwardParams& params, void* stream) {
  static_assert(sizeof(BackwardShared<Config>) <= kSharedMemoryPerBlock);
  if (items == 0) return;
  launch_kernel(
      name, kernel,
      {.blocks = static_cast<unsigned>(std::min<std::int64_t>(items, params.multiprocessors)),
       .threads = Config::kThreads,
       .shared_bytes = sizeof(BackwardShared<Config>)},
      static_cast<cudaStream_t>(stream), params);
}

template <class Element, int kKeyDim>
void launch_backward(const char* name, const BackwardParams& params, void* stream) {
  using Queries = QueriesConfig<Element, kKeyDim>;
  using Keys = KeysConfig<Element, kKeyDim>;
  const AttentionWeightsForwardProblem& problem = params.problem.forward;
  launch_items<Queries>(name, attention_weights_backward_queries_kernel<Queries>,
                        QueriesItem<Queries>::count(problem), params, stream);
  if (params.problem.dk.data == nullptr) return;
  launch_items<Keys>(name, attention_weights_backward_keys_kernel<Keys>,
                     KeysItem<Keys>::count(problem), params, stream);
}

}  // namespace tandem::cuda::attention_weights

#define TANDEM_ATTENTION_WEIGHTS_BACKWARD(Element, key_dim) \
  template void launch_backward<Element, key_dim>(const char*, const BackwardParams&, void*);

#define TANDEM_INSTANCES_BACKWARD(Element)        \
  namespace tandem::cuda::attention_weights {     \
  TANDEM_ATTENTION_WEIGHTS_BACKWARD(Element, 64)  \
  TANDEM_ATTENTION_WEIGHTS_BACKWARD(Element, 128) \
  TANDEM_ATTENTION_WEIGHTS_BACKWARD(Element, 256) \
  }
