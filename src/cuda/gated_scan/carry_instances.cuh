// Instantiates the launches of gated_scan_decay, gated_scan_carry and its backward of one
// 16-bit dtype: of aligned tensors and of any.
#pragma once

#include "cuda/gated_scan/carry.cuh"
#include "cuda/gated_scan/carry_backward.cuh"
#include "cuda/gated_scan/decay.cuh"

#define TANDEM_INSTANCES_CARRY_OF(Element, Decay, kChannels)                                       \
  template void launch_carry<Element, Decay, kChannels>(const char*, const GatedScanCarryProblem&, \
                                                        void*);                                    \
  template void launch_carry_backward<Element, Decay, kChannels>(                                  \
      const char*, const GatedScanCarryBackwardProblem&, void*);

#define TANDEM_INSTANCES_CARRY(Element)                                                       \
  namespace tandem::cuda::gated_scan {                                                        \
  template void launch_decay<Element, kVectorChannels<Element>>(const char*,                  \
                                                                const GatedScanDecayProblem&, \
                                                                void*);                       \
  template void launch_decay<Element, 1>(const char*, const GatedScanDecayProblem&, void*);   \
  TANDEM_INSTANCES_CARRY_OF(Element, Element, kVectorChannels<Element>)                       \
  TANDEM_INSTANCES_CARRY_OF(Element, Element, 1)                                              \
  TANDEM_INSTANCES_CARRY_OF(Element, float, kVectorChannels<Element>)                         \
  TANDEM_INSTANCES_CARRY_OF(Element, float, 1)                                                \
  }
