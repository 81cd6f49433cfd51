// Instantiates the products of linear_scan_backward for one dtype.
#pragma once

#include "cuda/linear_scan/product.cuh"

#define TANDEM_INSTANCES_BACKWARD(Element)                                                        \
  namespace tandem::cuda::linear_scan {                                                           \
  template void launch_product<Element, Product::kProject>(                                       \
      const ProductParams<Product::kProject>&, int, void*);                                       \
  template void launch_product<Element, Product::kInput>(const ProductParams<Product::kInput>&,   \
                                                         int, void*);                             \
  template void launch_product<Element, Product::kWeight>(const ProductParams<Product::kWeight>&, \
                                                          int, void*);                            \
  }
