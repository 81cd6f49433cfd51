// Instantiates the kernels of linear_scan_backward for one dtype.
#pragma once

#include "cuda/linear_scan/convert.cuh"
#include "cuda/linear_scan/matmul.cuh"

#define TANDEM_LINEAR_SCAN_BACKWARD(Element)                                               \
  namespace tandem::cuda {                                                                 \
  template void launch_linear_scan_product<Element, LinearScanProduct::kProject>(          \
      const LinearScanProductParams&, void*);                                              \
  template void launch_linear_scan_product<Element, LinearScanProduct::kInput>(            \
      const LinearScanProductParams&, void*);                                              \
  template void launch_linear_scan_product<Element, LinearScanProduct::kWeight>(           \
      const LinearScanProductParams&, void*);                                              \
  template void launch_linear_scan_widen<Element>(const LinearScanConvertParams&, void*);  \
  template void launch_linear_scan_narrow<Element>(const LinearScanConvertParams&, void*); \
  template void launch_linear_scan_split<Element>(const LinearScanConvertParams&, void*);  \
  template void launch_linear_scan_copy<Element>(const LinearScanConvertParams&, void*);   \
  template void launch_linear_scan_sum<Element>(const LinearScanSumParams&, void*);        \
  }
