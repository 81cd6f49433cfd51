// Instantiates launch_forward for every tile of one dtype: each forward_*.cu and backward_*.cu does
// so for a few kinds of walks, since a translation unit takes long to compile.
#pragma once

#include "cuda/gla/forward.cuh"

#define TANDEM_FORWARD_INSTANCE(Element, key_dim, value_dim, split, walk)                \
  template void launch_forward<ForwardConfig<Element, key_dim, value_dim, split, walk>>( \
      const char*, const GlaForwardParams&, unsigned, void*);

#define TANDEM_FORWARD_INSTANCES(Element, split, walk)    \
  namespace tandem::cuda {                                \
  TANDEM_FORWARD_INSTANCE(Element, 64, 64, split, walk)   \
  TANDEM_FORWARD_INSTANCE(Element, 64, 128, split, walk)  \
  TANDEM_FORWARD_INSTANCE(Element, 128, 64, split, walk)  \
  TANDEM_FORWARD_INSTANCE(Element, 128, 128, split, walk) \
  TANDEM_FORWARD_INSTANCE(Element, 256, 64, split, walk)  \
  }

/// The walk for dk and dv, whose tiles are square.
#define TANDEM_KEY_VALUE_INSTANCES(Element)                          \
  namespace tandem::cuda {                                           \
  TANDEM_FORWARD_INSTANCE(Element, 64, 64, false, Walk::kKeyValue)   \
  TANDEM_FORWARD_INSTANCE(Element, 128, 128, false, Walk::kKeyValue) \
  }
