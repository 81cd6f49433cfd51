#include "cuda/gla/common/backward_maps.h"

#include <cstdint>

#include "cuda/gla/variant_choice.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {

BackwardMaps encode_maps(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  return {tile_map(f.q, f, f.HQ, f.K),        tile_map(f.k, f, f.HQ, f.K),
          tile_map(f.v, f, f.H, f.V),         tile_map(problem.d_o, f, f.H, f.V),
          tile_map(problem.dq, f, f.HQ, f.K), tile_map(problem.dk, f, f.HQ, f.K),
          tile_map(problem.dv, f, f.H, f.V)};
}

bool can_copy_saved_states(const GlaForwardProblem& f) {
  const bool empty = f.B == 0 || f.T == 0 || f.H == 0 || f.K == 0 || f.V == 0;
  return f.saved_states != nullptr && !empty && f.K % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(f.saved_states) % 16 == 0;
}

CUtensorMap map_states(const GlaForwardProblem& f, void* states, std::int64_t rows, int width) {
  const std::int64_t size = std::int64_t{width} * width;
  return encode(plan_stored_tile("states", {states, f.H * size, width, size}, f.dtype,
                                 {rows, width, f.H, width}, kChunk));
}

CUtensorMap map_saved_states(const GlaForwardProblem& f, int first, int columns) {
  const std::int64_t size = std::int64_t{f.V} * f.K;
  char* const from = static_cast<char*>(f.saved_states) + first * size_of(f.dtype);
  return encode(plan_tile("saved_states", {from, f.H * size, f.K, size}, f.dtype,
                          {f.B * ceil_div(f.T, kSavedStateTokens), f.V, f.H, columns}, kChunk));
}

}  // namespace tandem::cuda::gla
