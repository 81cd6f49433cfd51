// The launches of a walk: its kernel, and what must run before it.
#pragma once

#include <string>

#include "cuda/gla/walk/params.h"
#include "cuda/gla/walk/plan.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::gla {

/// Calls `add.operator()<key_dim, value_dim>()` for the tiles of a walk (walk/instances.cuh), the
/// smallest first, but for those of 256 columns of K, where the wider one is asked first whether it
/// is faster.
template <class Add>
void for_each_walk_tile(Add add) {
#ifndef TANDEM_CUDA_DEV
  add.template operator()<64, 64>();
  add.template operator()<64, 128>();
  add.template operator()<128, 64>();
#endif
  add.template operator()<128, 128>();
#ifndef TANDEM_CUDA_DEV
  add.template operator()<256, 128>();
  add.template operator()<256, 64>();
#endif
}

/// The launchers of a walk over one tile, of whole sequences and of split ones.
struct WalkLaunch {
  using Function = void (*)(const char*, const WalkParams&, unsigned blocks, void* stream);
  Function whole;
  Function split;
};

/// Launches a walk; sets `params.schedule`, from the plan and its workspace, where the flags are
/// clear. `name` is the variant's, for errors.
void run_walk(const std::string& name, const WalkLaunch& launch, const WalkPlan& plan,
              WalkParams& params, const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda::gla
