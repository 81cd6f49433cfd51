// Instantiates projection's forward kernels for one dtype.
#pragma once

#include "cuda/projection/forward.cuh"

#define TANDEM_INSTANCES_FORWARD(Element)                                       \
  namespace tandem::cuda::projection {                                          \
  template void launch_forward<Element, 64>(const ForwardParams&, int, void*);  \
  template void launch_forward<Element, 128>(const ForwardParams&, int, void*); \
  template void launch_normalize<Element>(const NormalizeParams&, void*);       \
  }
