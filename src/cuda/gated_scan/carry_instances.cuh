// Instantiates the launches of gated_scan_decay and gated_scan_carry of one 16-bit dtype: of
// aligned tensors and of any.
#pragma once

#include "cuda/gated_scan/carry.cuh"
#include "cuda/gated_scan/decay.cuh"

#define TANDEM_INSTANCES_CARRY(Element)                                                          \
  namespace tandem::cuda::gated_scan {                                                           \
  using Decays = GatedScanDecayProblem;                                                          \
  using Carries = GatedScanCarryProblem;                                                         \
  template void launch_decay<Element, kVectorChannels<Element>>(const char*, const Decays&,      \
                                                                void*);                          \
  template void launch_decay<Element, 1>(const char*, const Decays&, void*);                     \
  template void launch_carry<Element, Element, kVectorChannels<Element>>(const char*,            \
                                                                         const Carries&, void*); \
  template void launch_carry<Element, Element, 1>(const char*, const Carries&, void*);           \
  template void launch_carry<Element, float, kVectorChannels<Element>>(const char*,              \
                                                                       const Carries&, void*);   \
  template void launch_carry<Element, float, 1>(const char*, const Carries&, void*);             \
  }
