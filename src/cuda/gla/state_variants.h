// The tables behind cuda::gla_state_forward and cuda::gla_state_backward, for their tests.
#pragma once

#include "cuda/gla/state_forward_params.h"
#include "cuda/gla/variant_choice.h"

namespace tandem::cuda {

using StateForwardVariant = GlaVariant<void (*)(const char*, const GlaStateForwardParams&, void*)>;

const std::vector<StateForwardVariant>& state_forward_variants();
/// The variants of gla_state_backward: the same kernel over q and d_o, from the first token to the
/// last.
const std::vector<StateForwardVariant>& state_backward_variants();

/// Plans the copies of k and v, under the names that the op has for them.
GlaTilePlans plan_tiles(const GlaStateForwardProblem& problem, const char* k = "k",
                        const char* v = "v");

/// "" when the variant can run the problem, else why not.
std::string reason_against(const StateForwardVariant& variant,
                           const GlaStateForwardProblem& problem, const GlaTilePlans& tiles);

}  // namespace tandem::cuda
