// Instantiates launch_attention_forward for one dtype.
#pragma once

#include <algorithm>

#include "cuda/attention/forward.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention {

template <class Config>
void launch_forward(const char* name, const AttentionForwardParams& params, void* stream) {
  const AttentionForwardProblem& problem = params.problem;
  static_assert(sizeof(ForwardShared<Config>) <= kSharedMemoryPerBlock);
  std::int64_t tiles = ceil_div(problem.TQ, Config::kQueries) * problem.B;
  if (problem.cu_seqlens_q != nullptr) tiles += problem.N + 1;  // at most
  tiles *= problem.H;
  if (problem.TQ == 0 || tiles == 0) return;
  launch_kernel(
      name, attention_forward_kernel<Config>,
      {.blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, params.multiprocessors)),
       .threads = Config::kThreads,
       .shared_bytes = sizeof(ForwardShared<Config>)},
      static_cast<cudaStream_t>(stream), params);
}

template <class Element, int kKeyDim, int kValueDim>
void launch_attention_forward(const char* name, const AttentionForwardParams& params,
                              void* stream) {
  constexpr ForwardTile kTile = forward_tile(kKeyDim, kValueDim);
  launch_forward<ForwardConfig<Element, kKeyDim, kValueDim, kTile.queries, kTile.keys>>(
      name, params, stream);
}

}  // namespace tandem::cuda::attention

#define TANDEM_ATTENTION_FORWARD(Element, key_dim, value_dim)          \
  template void launch_attention_forward<Element, key_dim, value_dim>( \
      const char*, const AttentionForwardParams&, void*);

#define TANDEM_INSTANCES_FORWARD(Element)     \
  namespace tandem::cuda::attention {         \
  TANDEM_ATTENTION_FORWARD(Element, 64, 64)   \
  TANDEM_ATTENTION_FORWARD(Element, 96, 96)   \
  TANDEM_ATTENTION_FORWARD(Element, 128, 128) \
  }

#define TANDEM_INSTANCES_FORWARD_WIDE(Element) \
  namespace tandem::cuda::attention {          \
  TANDEM_ATTENTION_FORWARD(Element, 192, 128)  \
  TANDEM_ATTENTION_FORWARD(Element, 192, 192)  \
  TANDEM_ATTENTION_FORWARD(Element, 256, 256)  \
  }
