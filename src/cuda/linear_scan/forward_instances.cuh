// Instantiates launch_linear_scan_forward for every tile of one dtype.
#pragma once

#include "cuda/linear_scan/forward.cuh"

#define TANDEM_LINEAR_SCAN_INSTANCE(Element, ...)                                   \
  template void launch_linear_scan_forward<LinearScanConfig<Element, __VA_ARGS__>>( \
      const char*, const LinearScanForwardParams&, unsigned, void*);

#define TANDEM_LINEAR_SCAN_INSTANCES(Element)                     \
  namespace tandem::cuda {                                        \
  TANDEM_LINEAR_SCAN_INSTANCE(Element, 1, 64, false)              \
  TANDEM_LINEAR_SCAN_INSTANCE(Element, 1, 64, false, false, true) \
  TANDEM_LINEAR_SCAN_INSTANCE(Element, 1, 64, false, true)        \
  TANDEM_LINEAR_SCAN_INSTANCE(Element, 2, 256, true)              \
  }
