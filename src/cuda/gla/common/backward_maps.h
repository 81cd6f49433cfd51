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

/// Whether TMA can copy the states that the forward saves; where none are there, it cannot.
bool can_copy_saved_states(const GlaForwardProblem& problem);

/// The map of columns [first, first + columns) of K of the states that the forward saved.
CUtensorMap map_saved_states(const GlaForwardProblem& problem, int first, int columns);

/// The map of states [rows,H,width,width] in a workspace, of the problem's dtype: both V and K are
/// padded.
CUtensorMap map_states(const GlaForwardProblem& problem, void* states, std::int64_t rows,
                       int width);

}  // namespace tandem::cuda::gla
