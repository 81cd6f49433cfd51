// Instantiates gated_scan_forward_kernel for every tile of one 16-bit dtype.
#pragma once

#include "cuda/gated_scan/forward.cuh"

#define TANDEM_INSTANCES_FORWARD(Element)                                               \
  namespace tandem::cuda::gated_scan {                                                  \
  template ForwardKernel forward_kernel<WideConfig<Element, Element>>();                \
  template ForwardKernel forward_kernel<NarrowConfig<Element, Element>>();              \
  template ForwardKernel forward_kernel<SquareConfig<Element, Element>>();              \
  template ForwardKernel forward_kernel<TallConfig<Element, Element>>();                \
  template ForwardKernel forward_kernel<SlimConfig<Element, Element>>();                \
  template ForwardKernel forward_kernel<NarrowStatesConfig<Element, Element>>();        \
  template ForwardKernel forward_kernel<NarrowConfig<Element, Element, false>>();       \
  template ForwardKernel forward_kernel<NarrowStatesConfig<Element, Element, false>>(); \
  template ForwardKernel forward_kernel<NarrowConfig<Element, float>>();                \
  template ForwardKernel forward_kernel<NarrowStatesConfig<Element, float>>();          \
  template ForwardKernel forward_kernel<NarrowConfig<Element, float, false>>();         \
  template ForwardKernel forward_kernel<NarrowStatesConfig<Element, float, false>>();   \
  }

#define TANDEM_INSTANCES_FORWARD_OF_PRODUCT(Element)                                              \
  namespace tandem::cuda::gated_scan {                                                            \
  template ForwardKernel forward_kernel<OfProductConfig<Element, Element>>();                     \
  template ForwardKernel forward_kernel<OfProductWideConfig<Element, Element>>();                 \
  template ForwardKernel forward_kernel<OfProductSquareConfig<Element, Element>>();               \
  template ForwardKernel forward_kernel<OfProductConfig<Element, Element, false>>();              \
  template ForwardKernel forward_kernel<OfProductConfig<Element, float>>();                       \
  template ForwardKernel forward_kernel<OfProductSquareConfig<Element, float>>();                 \
  template ForwardKernel forward_kernel<OfProductConfig<Element, float, false>>();                \
  template ForwardKernel forward_kernel<PerSequence<OfProductConfig<Element, Element>>>();        \
  template ForwardKernel forward_kernel<PerSequence<OfProductConfig<Element, Element, false>>>(); \
  template ForwardKernel forward_kernel<PerSequence<OfProductConfig<Element, float>>>();          \
  template ForwardKernel forward_kernel<PerSequence<OfProductConfig<Element, float, false>>>();   \
  }

#define TANDEM_INSTANCES_FORWARD_SEQUENCES(Element)                                                \
  namespace tandem::cuda::gated_scan {                                                             \
  template ForwardKernel forward_kernel<PerSequence<NarrowConfig<Element, Element>>>();            \
  template ForwardKernel forward_kernel<PerSequence<NarrowStatesConfig<Element, Element>>>();      \
  template ForwardKernel forward_kernel<PerSequence<NarrowConfig<Element, Element, false>>>();     \
  template ForwardKernel                                                                           \
  forward_kernel<PerSequence<NarrowStatesConfig<Element, Element, false>>>();                      \
  template ForwardKernel forward_kernel<PerSequence<NarrowConfig<Element, float>>>();              \
  template ForwardKernel forward_kernel<PerSequence<NarrowStatesConfig<Element, float>>>();        \
  template ForwardKernel forward_kernel<PerSequence<NarrowConfig<Element, float, false>>>();       \
  template ForwardKernel forward_kernel<PerSequence<NarrowStatesConfig<Element, float, false>>>(); \
  }
