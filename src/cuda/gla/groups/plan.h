// What a backward by groups of heads takes, its workspace and its predicted time.
#pragma once

#include <cstddef>
#include <string>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

// Columns of K that a kernel takes; wider heads go in parts, each of which makes dq and dk of its
// own columns.
constexpr int kGroupPart = 128;
constexpr int kMostGroupParts = 2;

struct GroupBackwardPlan {
  int parts = 1;
  int chunks = 0;
  int pairs = 0;
  // Offsets into the workspace, 256-byte aligned.
  std::size_t states = 0;  // a part's behind those of the one before, as are state_gradients
  std::size_t state_gradients = 0;
  std::size_t part_bytes = 0;  // of a part's states
  std::size_t decay_sums = 0;
  std::size_t workspace_bytes = 0;
};

/// Says why a problem's sizes cannot go by groups; "" when they can.
std::string reason_against_groups(const GlaBackwardProblem& problem);

/// Predicts microseconds by the device's model, right enough to compare with those of other ways.
double predicted_groups_time(const GlaBackwardProblem& problem, const DeviceProperties& device);

GroupBackwardPlan plan_group_backward(const GlaBackwardProblem& problem);

}  // namespace tandem::cuda::gla
