// Instantiates the launches of one dtype: of aligned tensors and of any.
#pragma once

#include "cuda/causal_conv1d/backward.cuh"
#include "cuda/causal_conv1d/forward.cuh"
#include "cuda/causal_conv1d/step.cuh"

#define TANDEM_INSTANCES_CONV(Element)                                                          \
  namespace tandem::cuda::causal_conv1d {                                                       \
  template void launch_forward<Element, kChannels>(const char*, const ForwardParams&, void*);   \
  template void launch_forward<Element, 1>(const char*, const ForwardParams&, void*);           \
  template void launch_backward<Element, kChannels>(const char*, const BackwardParams&, void*); \
  template void launch_backward<Element, 1>(const char*, const BackwardParams&, void*);         \
  template void launch_step<Element>(const char*, const StepParams&, void*);                    \
  }
