// The maps of a backward's tensors, for the kernels that make all of dq, dk and dv.
#pragma once

#include <cuda.h>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct BackwardMaps {
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap d_o_map;
  CUtensorMap dq_map;
  CUtensorMap dk_map;
  CUtensorMap dv_map;
};

BackwardMaps encode_maps(const GlaBackwardProblem& problem);

}  // namespace tandem::cuda::gla
