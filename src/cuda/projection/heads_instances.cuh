// Instantiates projection's kernels of heads for one dtype.
#pragma once

#include "cuda/projection/heads.cuh"
#include "cuda/projection/heads_gradient.cuh"

#define TANDEM_INSTANCES_HEADS(Element)                                     \
  namespace tandem::cuda::projection {                                      \
  template void launch_heads<Element, 128>(const HeadsParams&, int, void*); \
  template void launch_heads<Element, 256>(const HeadsParams&, int, void*); \
  }

#define TANDEM_INSTANCES_HEADS_ROWS(Element)                                         \
  namespace tandem::cuda::projection {                                               \
  template void launch_heads_few_rows<Element, 8>(const HeadsParams&, int, void*);   \
  template void launch_heads_few_rows<Element, 16>(const HeadsParams&, int, void*);  \
  template void launch_heads_few_rows<Element, 32>(const HeadsParams&, int, void*);  \
  template void launch_heads_few_rows<Element, 64>(const HeadsParams&, int, void*);  \
  template void launch_heads_few_rows<Element, 96>(const HeadsParams&, int, void*);  \
  template void launch_heads_few_rows<Element, 128>(const HeadsParams&, int, void*); \
  template void launch_heads_few_rows<Element, 160>(const HeadsParams&, int, void*); \
  template void launch_heads_few_rows<Element, 224>(const HeadsParams&, int, void*); \
  template void launch_finish<Element>(const FinishParams&, void*);                  \
  template void launch_heads_gradient<Element>(const HeadsGradientParams&, void*);   \
  template void launch_head_sum<Element>(const HeadSumParams&, void*);               \
  }
