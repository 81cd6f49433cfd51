// Instantiates gated_scan_backward_kernel for every tile of one 16-bit dtype.
#pragma once

#include "cuda/gated_scan/backward.cuh"

#define TANDEM_INSTANCES_BACKWARD(Element)                                                  \
  namespace tandem::cuda::gated_scan {                                                      \
  template BackwardKernel backward_kernel<RowsBackwardConfig<Element, Element>>();          \
  template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, Element>>();        \
  template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, Element, false>>(); \
  template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, float>>();          \
  template BackwardKernel backward_kernel<NarrowBackwardConfig<Element, float, false>>();   \
  }

#define TANDEM_INSTANCES_BACKWARD_SEQUENCES(Element)                                              \
  namespace tandem::cuda::gated_scan {                                                            \
  template BackwardKernel backward_kernel<PerSequence<NarrowBackwardConfig<Element, Element>>>(); \
  template BackwardKernel                                                                         \
  backward_kernel<PerSequence<NarrowBackwardConfig<Element, Element, false>>>();                  \
  template BackwardKernel backward_kernel<PerSequence<NarrowBackwardConfig<Element, float>>>();   \
  template BackwardKernel                                                                         \
  backward_kernel<PerSequence<NarrowBackwardConfig<Element, float, false>>>();                    \
  }
