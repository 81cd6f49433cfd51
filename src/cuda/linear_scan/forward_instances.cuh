// Instantiates launch_forward for every tile of one dtype, without and with what is kept.
#pragma once

#include "cuda/linear_scan/forward.cuh"

#define TANDEM_LINEAR_SCAN_INSTANCE(...) \
  template void launch_forward<__VA_ARGS__>(const char*, const ForwardParams&, unsigned, void*);

#define TANDEM_INSTANCES_FORWARD(Element)                                 \
  namespace tandem::cuda::linear_scan {                                   \
  TANDEM_LINEAR_SCAN_INSTANCE(ForwardConfig<Element, 1, 64, false>)       \
  TANDEM_LINEAR_SCAN_INSTANCE(ForwardConfig<Element, 1, 64, false, true>) \
  TANDEM_LINEAR_SCAN_INSTANCE(ForwardConfig<Element, 2, 256, true>)       \
  }

#define TANDEM_INSTANCES_KEEPING(Element)                                          \
  namespace tandem::cuda::linear_scan {                                            \
  TANDEM_LINEAR_SCAN_INSTANCE(Keeping<ForwardConfig<Element, 1, 64, false>>)       \
  TANDEM_LINEAR_SCAN_INSTANCE(Keeping<ForwardConfig<Element, 1, 64, false, true>>) \
  TANDEM_LINEAR_SCAN_INSTANCE(Keeping<ForwardConfig<Element, 2, 256, true>>)       \
  }
