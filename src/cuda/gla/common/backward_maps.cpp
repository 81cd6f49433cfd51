#include "cuda/gla/common/backward_maps.h"

#include "cuda/gla/variant_choice.h"

namespace tandem::cuda::gla {

BackwardMaps encode_maps(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  return {tile_map(f.q, f, f.HQ, f.K),        tile_map(f.k, f, f.HQ, f.K),
          tile_map(f.v, f, f.H, f.V),         tile_map(problem.d_o, f, f.H, f.V),
          tile_map(problem.dq, f, f.HQ, f.K), tile_map(problem.dk, f, f.HQ, f.K),
          tile_map(problem.dv, f, f.H, f.V)};
}

}  // namespace tandem::cuda::gla
