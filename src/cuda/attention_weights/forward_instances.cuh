// Instantiates launch_forward of attention_weights for one dtype.
#pragma once

#include "cuda/attention_weights/forward.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention_weights {

template <class Element, int kKeyDim>
void launch_forward(const char* name, const ForwardParams& params, void* stream) {
  using Config = ForwardConfig<Element, kKeyDim>;
  static_assert(sizeof(ForwardShared<Config>) <= kSharedMemoryPerBlock);
  launch_kernel(name, attention_weights_forward_kernel<Config>,
                {.blocks = static_cast<unsigned>(count_strips(params.problem, params.strip)),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(ForwardShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::attention_weights

#define TANDEM_ATTENTION_WEIGHTS_FORWARD(Element, key_dim) \
  template void launch_forward<Element, key_dim>(const char*, const ForwardParams&, void*);

#define TANDEM_INSTANCES_FORWARD(Element)        \
  namespace tandem::cuda::attention_weights {    \
  TANDEM_ATTENTION_WEIGHTS_FORWARD(Element, 64)  \
  TANDEM_ATTENTION_WEIGHTS_FORWARD(Element, 128) \
  TANDEM_ATTENTION_WEIGHTS_FORWARD(Element, 256) \
  }
