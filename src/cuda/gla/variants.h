// The table behind cuda::gla_forward, for its tests.
#pragma once

#include "cuda/gla/forward_params.h"
#include "cuda/gla/forward_plan.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda {

struct ForwardLaunch {
  using Function = void (*)(const char*, const GlaForwardParams&, unsigned blocks, void* stream);
  Function whole;
  Function split;
};
using ForwardVariant = GlaVariant<ForwardLaunch>;

const std::vector<ForwardVariant>& forward_variants();

/// Plans the copies of q, k, v and, in a call, o.
GlaTilePlans plan_tiles(const GlaForwardProblem& problem, bool with_output = true);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const GlaForwardProblem& problem,
                           const GlaTilePlans& tiles);

/// Launches a walk; sets `params.schedule`, from the plan and its workspace, where the flags of a
/// split walk are clear. `name` is the variant's, for errors.
void run_walk(const std::string& name, const ForwardLaunch& launch, const ForwardPlan& plan,
              GlaForwardParams& params, const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda
