// Instantiates the products of linear_scan for one dtype.
#pragma once

#include "cuda/linear_scan/product.cuh"

#define TANDEM_LINEAR_SCAN_PRODUCT(Element, kProduct, kColumns)       \
  template void launch_product<Element, Product::kProduct, kColumns>( \
      const char*, const ProductParams&, int, void*);

#define TANDEM_INSTANCES_BACKWARD(Element)                       \
  namespace tandem::cuda::linear_scan {                          \
  TANDEM_LINEAR_SCAN_PRODUCT(Element, kProject, kProductColumns) \
  TANDEM_LINEAR_SCAN_PRODUCT(Element, kInput, kProductColumns)   \
  TANDEM_LINEAR_SCAN_PRODUCT(Element, kWeight, kProductColumns)  \
  TANDEM_LINEAR_SCAN_PRODUCT(Element, kWeight, kWideColumns)     \
  }
