// The tables behind cuda::gla_state_forward and cuda::gla_state_backward, for their tests.
#pragma once

#include "cuda/gla/state_forward_params.h"
#include "cuda/gla/variant_choice.h"

namespace tandem::cuda {

using StateForwardVariant = GlaVariant<void (*)(const char*, const GlaStateForwardParams&, void*)>;

const std::vector<StateForwardVariant>& state_forward_variants();
/// The same walks from the first token to the last.
const std::vector<StateForwardVariant>& state_backward_variants();

/// Of k and v, or what the op calls them.
GlaTilePlans plan_tiles(const GlaStateForwardProblem& problem, const char* k = "k",
                        const char* v = "v");

/// "" when the variant can run the problem, else why not.
std::string reason_against(const StateForwardVariant& variant,
                           const GlaStateForwardProblem& problem, const GlaTilePlans& tiles);

}  // namespace tandem::cuda
