// Instantiates gated_output's products for one dtype.
#pragma once

#include "cuda/gated_output/few_rows.cuh"
#include "cuda/gated_output/forward.cuh"
#include "cuda/gated_output/whole_rows.cuh"

#define TANDEM_INSTANCES_FORWARD(Element)                                                         \
  namespace tandem::cuda::gated_output {                                                          \
  template void launch_forward<Element, 64, 1>(const ForwardParams&, int, void*);                 \
  template void launch_forward<Element, 64, gemm::kSplitParts>(const ForwardParams&, int, void*); \
  template void launch_forward<Element, 128, 1>(const ForwardParams&, int, void*);                \
  template void launch_forward<Element, 160, 1>(const ForwardParams&, int, void*);                \
  template void launch_forward<Element, 256, 1>(const ForwardParams&, int, void*);                \
  }

#define TANDEM_INSTANCES_FEW_ROWS(Element)                                       \
  namespace tandem::cuda::gated_output {                                         \
  template void launch_few_rows<Element, 8>(const ForwardParams&, int, void*);   \
  template void launch_few_rows<Element, 16>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 32>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 64>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 96>(const ForwardParams&, int, void*);  \
  template void launch_few_rows<Element, 128>(const ForwardParams&, int, void*); \
  template void launch_few_rows<Element, 160>(const ForwardParams&, int, void*); \
  }

#define TANDEM_INSTANCES_WHOLE_ROWS(Element)                                           \
  namespace tandem::cuda::gated_output {                                               \
  template void launch_whole_rows<Element, false>(const WholeRowsParams&, int, void*); \
  template void launch_whole_rows<Element, true>(const WholeRowsParams&, int, void*);  \
  }
