// Instantiates launch_state for every tile of one dtype, in both directions, and both at once.
#pragma once

#include "cuda/gla/state/kernel.cuh"

#define TANDEM_STATE_INSTANCE(...) \
  template void launch_state<StateConfig<__VA_ARGS__>>(const char*, const StateParams&, void*);

#define TANDEM_STATE_TILES(Element, reverse)       \
  TANDEM_STATE_INSTANCE(Element, 64, 64, reverse)  \
  TANDEM_STATE_INSTANCE(Element, 64, 128, reverse) \
  TANDEM_STATE_INSTANCE(Element, 128, 64, reverse) \
  TANDEM_STATE_INSTANCE(Element, 128, 128, reverse)

#define TANDEM_INSTANCES_STATE(Element)                                                           \
  namespace tandem::cuda::gla {                                                                   \
  TANDEM_STATE_TILES(Element, false)                                                              \
  TANDEM_STATE_TILES(Element, true)                                                               \
  template void launch_segment_states<Element, 128, 128>(const char*, const SegmentStatesParams&, \
                                                         void*);                                  \
  }
