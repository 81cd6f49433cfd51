// Instantiates projection's forward kernels for one dtype.
#pragma once

#include "cuda/projection/few_rows.cuh"
#include "cuda/projection/forward.cuh"
#include "cuda/projection/two_parts.cuh"

#define TANDEM_INSTANCES_FORWARD(Element)                                                        \
  namespace tandem::cuda::projection {                                                           \
  template void launch_forward<Element, 64, false, 1>(const ForwardParams&, int, void*);         \
  template void launch_forward<Element, 64, true, 1>(const ForwardParams&, int, void*);          \
  template void launch_forward<Element, 128, true, 1>(const ForwardParams&, int, void*);         \
  template void launch_forward<Element, 64, false, gemm::kSplitParts>(const ForwardParams&, int, \
                                                                      void*);                    \
  template void launch_forward<Element, 96, true, 1>(const ForwardParams&, int, void*);          \
  template void launch_forward<Element, 128, false, 1>(const ForwardParams&, int, void*);        \
  template void launch_forward<Element, 160, true, 1>(const ForwardParams&, int, void*);         \
  template void launch_forward<Element, 192, true, 1>(const ForwardParams&, int, void*);         \
  template void launch_forward<Element, 256, true, 1>(const ForwardParams&, int, void*);         \
  template void launch_normalize<Element>(const NormalizeParams&, void*);                        \
  }

#define TANDEM_INSTANCES_TWO_PARTS(Element)                                                 \
  namespace tandem::cuda::projection {                                                      \
  template void launch_two_parts<Element, 64, 1>(const ForwardParams&, int, void*);         \
  template void launch_two_parts<Element, 64, gemm::kSplitParts>(const ForwardParams&, int, \
                                                                 void*);                    \
  template void launch_two_parts<Element, 128, 1>(const ForwardParams&, int, void*);        \
  template void launch_two_parts<Element, 192, 1>(const ForwardParams&, int, void*);        \
  template void launch_two_parts<Element, 256, 1>(const ForwardParams&, int, void*);        \
  }

#define TANDEM_INSTANCES_FEW_ROWS(Element)                                            \
  namespace tandem::cuda::projection {                                                \
  template void launch_few_rows<Element, 8, 128>(const ForwardParams&, int, void*);   \
  template void launch_few_rows<Element, 16, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 32, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 64, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 96, 128>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 128, 128>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 160, 128>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 224, 128>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 160, 192>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 200, 192>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 208, 256>(const ForwardParams&, int, void*); \
  }
