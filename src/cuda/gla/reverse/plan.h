// What a backward in one reverse walk takes, its workspace and its predicted time.
#pragma once

#include <cstddef>
#include <string>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct ReversePlan {
  int chunks = 0;
  int pairs = 0;
  // Offsets into the workspace, 256-byte aligned.
  std::size_t states = 0;
  std::size_t decay_sums = 0;
  std::size_t workspace_bytes = 0;
};

/// Says why a problem's sizes cannot go in one reverse walk; "" when they can.
std::string reason_against_reverse(const GlaBackwardProblem& problem);

/// Predicts microseconds by the device's model, right enough to compare with those of walks
/// (walk/plan.h).
double predicted_reverse_time(const GlaBackwardProblem& problem, const DeviceProperties& device);

ReversePlan plan_reverse_backward(const GlaBackwardProblem& problem);

}  // namespace tandem::cuda::gla
