// The tables behind cuda::gla_state_forward and cuda::gla_state_backward, for their tests.
#pragma once

#include "cuda/gla/state/params.h"
#include "cuda/gla/variant_choice.h"

namespace tandem::cuda::gla {

using StateVariant = TileVariant<void (*)(const char*, const StateParams&, void*)>;

const std::vector<StateVariant>& state_forward_variants();
/// The variants of gla_state_backward: the same kernel over q and d_o, from the first token to the
/// last.
const std::vector<StateVariant>& state_backward_variants();

/// Plans the copies of k and v, under the names that the op has for them.
TilePlans plan_tiles(const GlaStateForwardProblem& problem, const char* k = "k",
                     const char* v = "v");

/// "" when the variant can run the problem, else why not.
std::string reason_against(const StateVariant& variant, const GlaStateForwardProblem& problem,
                           const TilePlans& tiles);

}  // namespace tandem::cuda::gla
