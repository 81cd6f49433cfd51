// The table behind cuda::gla_forward, for its tests.
#pragma once

#include "cuda/gla/forward_params.h"
#include "cuda/gla/variant_choice.h"

namespace tandem::cuda {

struct ForwardLaunch {
  using Function = void (*)(const char*, const GlaForwardParams&, unsigned blocks, void* stream);
  Function whole;
  Function split;
};
using ForwardVariant = GlaVariant<ForwardLaunch>;

const std::vector<ForwardVariant>& forward_variants();

/// Of q, k, v and o.
GlaTilePlans plan_tiles(const GlaForwardProblem& problem);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const GlaForwardProblem& problem,
                           const GlaTilePlans& tiles);

}  // namespace tandem::cuda
