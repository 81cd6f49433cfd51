// The table behind cuda::gla_state_forward, for its tests.
#pragma once

#include "cuda/gla/state_forward_params.h"
#include "cuda/gla/variant_choice.h"

namespace tandem::cuda {

using StateForwardVariant = GlaVariant<void (*)(const char*, const GlaStateForwardParams&, void*)>;

const std::vector<StateForwardVariant>& state_forward_variants();

/// Of k and v.
GlaTilePlans plan_tiles(const GlaStateForwardProblem& problem);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const StateForwardVariant& variant,
                           const GlaStateForwardProblem& problem, const GlaTilePlans& tiles);

}  // namespace tandem::cuda
