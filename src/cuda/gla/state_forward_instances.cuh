// Instantiates launch_state_forward for every tile of one dtype, in one direction.
#pragma once

#include "cuda/gla/state_forward.cuh"

#define TANDEM_STATE_FORWARD_INSTANCE(Element, key_dim, value_dim, reverse)                     \
  template void launch_state_forward<StateForwardConfig<Element, key_dim, value_dim, reverse>>( \
      const char*, const GlaStateForwardParams&, void*);

#define TANDEM_STATE_FORWARD_INSTANCES(Element, reverse)    \
  namespace tandem::cuda {                                  \
  TANDEM_STATE_FORWARD_INSTANCE(Element, 64, 64, reverse)   \
  TANDEM_STATE_FORWARD_INSTANCE(Element, 64, 128, reverse)  \
  TANDEM_STATE_FORWARD_INSTANCE(Element, 128, 64, reverse)  \
  TANDEM_STATE_FORWARD_INSTANCE(Element, 128, 128, reverse) \
  }
