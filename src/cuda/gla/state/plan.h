// How a state's direct computation from k and v is cut over the device, and its workspace. A pure
// function of shapes and device properties.
#pragma once

#include <cstddef>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// Each CTA keeps a tile of the state.
struct StatePlan {
  int segments = 1;
  std::size_t states = 0;           // offset of fp32 [N,H,segments,K,V] when split
  std::size_t total_log_decay = 0;  // offset of fp32 [N,H,segments] when split
  std::size_t workspace_bytes = 0;

  bool split() const { return segments > 1; }
};

StatePlan plan_state(const GlaStateForwardProblem& problem, int key_dim, int value_dim,
                     const DeviceProperties& device, bool batch_invariant = false);

}  // namespace tandem::cuda::gla
