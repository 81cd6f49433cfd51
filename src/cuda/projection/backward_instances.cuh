// Instantiates projection's backward kernels for one dtype.
#pragma once

#include "cuda/projection/backward.cuh"

#define TANDEM_INSTANCES_BACKWARD(Element)                                  \
  namespace tandem::cuda::projection {                                      \
  template void launch_gradient<Element>(const GradientParams&, void*);     \
  template void launch_column_sums<Element>(const ColumnSumParams&, void*); \
  }

#define TANDEM_INSTANCES_BACKWARD_PRODUCTS(Element)                                              \
  namespace tandem::cuda::projection {                                                           \
  template void launch_input<Element, 64, 1>(const InputParams&, int, void*);                    \
  template void launch_input<Element, 128, 1>(const InputParams&, int, void*);                   \
  template void launch_input<Element, 192, 1>(const InputParams&, int, void*);                   \
  template void launch_input<Element, 256, 1>(const InputParams&, int, void*);                   \
  template void launch_input<Element, 64, gemm::kSplitParts>(const InputParams&, int, void*);    \
  template void launch_weight<Element, 128, 1>(const WeightParams&, int, void*);                 \
  template void launch_weight<Element, 128, gemm::kSplitParts>(const WeightParams&, int, void*); \
  template void launch_weight<Element, 192, 1>(const WeightParams&, int, void*);                 \
  template void launch_weight<Element, 256, 1>(const WeightParams&, int, void*);                 \
  }
