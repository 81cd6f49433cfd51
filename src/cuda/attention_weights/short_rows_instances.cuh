// Instantiates launch_short_rows of attention_weights for one dtype.
#pragma once

#include "cuda/attention_weights/short_rows.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention_weights {

template <class Config>
void launch_short_rows_as(const char* name, const ForwardParams& params, void* stream) {
  static_assert(Config::kCtas * (sizeof(ShortRowsShared<Config>) + 1024) <=
                kSharedMemoryPerMultiprocessor);
  const std::int64_t shares =
      row_shares(params.problem, kShortRowsQueries, Config::kCtas * params.multiprocessors);
  launch_kernel(name, attention_weights_short_rows_kernel<Config>,
                {.blocks = static_cast<unsigned>(shares),
                 .threads = Config::kThreads,
                 .shared_bytes = sizeof(ShortRowsShared<Config>)},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element, int kGroups>
void launch_short_rows(const char* name, const ForwardParams& params, void* stream) {
  if (params.whole_pieces) {
    launch_short_rows_as<ShortRowsConfig<Element, kGroups, true>>(name, params, stream);
  } else {
    launch_short_rows_as<ShortRowsConfig<Element, kGroups, false>>(name, params, stream);
  }
}

}  // namespace tandem::cuda::attention_weights

#define TANDEM_ATTENTION_WEIGHTS_SHORT_ROWS(Element, groups) \
  template void launch_short_rows<Element, groups>(const char*, const ForwardParams&, void*);

#define TANDEM_INSTANCES_SHORT_ROWS(Element)      \
  namespace tandem::cuda::attention_weights {     \
  TANDEM_ATTENTION_WEIGHTS_SHORT_ROWS(Element, 1) \
  TANDEM_ATTENTION_WEIGHTS_SHORT_ROWS(Element, 2) \
  TANDEM_ATTENTION_WEIGHTS_SHORT_ROWS(Element, 3) \
  }
