// Instantiates launch_whole_rows of attention_weights for one dtype.
#pragma once

#include "cuda/attention_weights/whole_rows.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention_weights {

template <class Config>
void launch_whole_rows_as(const char* name, const ForwardParams& params, void* stream) {
  static_assert(Config::kCtas * (sizeof(WholeRowsShared<Config>) + 1024) <=
                kSharedMemoryPerMultiprocessor);
  const std::int64_t shares =
      row_shares(params.problem, kWholeRowsQueries, Config::kCtas * params.multiprocessors);
  launch_kernel(name, attention_weights_whole_rows_kernel<Config>,
                {.blocks = static_cast<unsigned>(shares),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(WholeRowsShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element, int kKeyDim, int kWarps>
void launch_whole_rows(const char* name, const ForwardParams& params, void* stream) {
  if (params.whole_pieces) {
    launch_whole_rows_as<WholeRowsConfig<Element, kKeyDim, kWarps, true>>(name, params, stream);
  } else {
    launch_whole_rows_as<WholeRowsConfig<Element, kKeyDim, kWarps, false>>(name, params, stream);
  }
}

}  // namespace tandem::cuda::attention_weights

#define TANDEM_ATTENTION_WEIGHTS_WHOLE_ROWS(Element, key_dim, warps)                          \
  template void launch_whole_rows<Element, key_dim, warps>(const char*, const ForwardParams&, \
                                                           void*);

#define TANDEM_INSTANCES_WHOLE_ROWS(Element)           \
  namespace tandem::cuda::attention_weights {          \
  TANDEM_ATTENTION_WEIGHTS_WHOLE_ROWS(Element, 64, 8)  \
  TANDEM_ATTENTION_WEIGHTS_WHOLE_ROWS(Element, 64, 12) \
  TANDEM_ATTENTION_WEIGHTS_WHOLE_ROWS(Element, 64, 16) \
  }
