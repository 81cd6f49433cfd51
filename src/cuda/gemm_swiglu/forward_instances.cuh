// Instantiates gemm_swiglu's forward kernels for one dtype.
#pragma once

#include "cuda/gemm_swiglu/few_rows.cuh"
#include "cuda/gemm_swiglu/forward.cuh"

#define TANDEM_INSTANCES_FORWARD(Element)                                       \
  namespace tandem::cuda::gemm_swiglu {                                         \
  template void launch_forward<Element, 128>(const ForwardParams&, int, void*); \
  template void launch_forward<Element, 256>(const ForwardParams&, int, void*); \
  }

#define TANDEM_INSTANCES_FEW_ROWS(Element)                                            \
  namespace tandem::cuda::gemm_swiglu {                                               \
  template void launch_few_rows<Element, 8, 128>(const ForwardParams&, int, void*);   \
  template void launch_few_rows<Element, 16, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 32, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 64, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 96, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 128, 128>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 160, 128>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 160, 192>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 200, 192>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 208, 256>(const ForwardParams&, int, void*); \
  }
