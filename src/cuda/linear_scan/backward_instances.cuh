// Instantiates the products of linear_scan_backward for one dtype.
#pragma once

#include "cuda/linear_scan/product.cuh"

#define TANDEM_LINEAR_SCAN_BACKWARD(Element)                                      \
  namespace tandem::cuda {                                                        \
  template void launch_linear_scan_product<Element, LinearScanProduct::kProject>( \
      const LinearScanProductParams&, void*);                                     \
  template void launch_linear_scan_product<Element, LinearScanProduct::kInput>(   \
      const LinearScanProductParams&, void*);                                     \
  template void launch_linear_scan_product<Element, LinearScanProduct::kWeight>(  \
      const LinearScanProductParams&, void*);                                     \
  }
