// The table behind cuda::gla_forward, for its tests.
#pragma once

#include "cuda/gla/variant_choice.h"
#include "cuda/gla/walk/run.h"

namespace tandem::cuda::gla {

struct ForwardVariant : TileVariant<WalkLaunch> {
  int heads;          // of a group, walked together, each with its share of value_dim
  WalkLaunch saving;  // that saves states, too; null where the tile does not
};

const std::vector<ForwardVariant>& forward_variants();

/// Plans the copies of q, k, v and, in a call, o.
TilePlans plan_tiles(const GlaForwardProblem& problem, bool with_output = true);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const GlaForwardProblem& problem,
                           const TilePlans& tiles);

}  // namespace tandem::cuda::gla
