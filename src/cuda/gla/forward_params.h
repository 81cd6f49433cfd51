// What gla_forward_kernel receives: the checked problem, and the tensor maps where TMA can be used.
#pragma once

#include <cuda.h>

#include "ops/gla.h"

namespace tandem::cuda {

struct GlaForwardParams {
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap o_map;
  bool tma = false;  // the maps are set; else threads copy
  GlaForwardProblem problem;
};

/// Launches gla_forward_kernel<Config>; `name` is the variant's, for errors. Instantiated in
/// forward_*.cu.
template <class Config>
void launch_forward(const char* name, const GlaForwardParams& params, void* stream);

}  // namespace tandem::cuda
