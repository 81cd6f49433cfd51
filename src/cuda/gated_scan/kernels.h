// A compiled kernel as the tables of variants know it.
#pragma once

#include <cstddef>

#include "cuda/gated_scan/params.h"

namespace tandem::cuda::gated_scan {

template <class Params>
struct KernelOf {
  int width;          // channels of a CTA
  int tile_tokens;    // of a CTA, per step
  int blocks_per_sm;  // CTAs that run at once
  int rows;           // rows that TMA copies at once; 0: no TMA
  void (*launch)(const char* name, const Params& params, unsigned chains, void* stream);
};

using ForwardKernel = KernelOf<ForwardParams>;
using BackwardKernel = KernelOf<BackwardParams>;

/// Returns the kernel of a Config (config.h); instantiated in *_instances.cuh and *_fp32.cu.
template <class Config>
ForwardKernel forward_kernel();
template <class Config>
BackwardKernel backward_kernel();

}  // namespace tandem::cuda::gated_scan
