// What a backward by chunks takes, its workspace and its predicted time.
#pragma once

#include <cstddef>
#include <string>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

constexpr int kChunkBackwardWidth = 64;  // the widest K and V; states are padded to it

struct ChunkBackwardPlan {
  int pairs = 0;              // of chunks, per sequence
  int segments = 1;           // per sequence
  int segment_pairs = 0;      // of every segment but the last
  bool saved_states = false;  // of the forward are read
  // Offsets into the workspace, 256-byte aligned.
  std::size_t states = 0;
  std::size_t state_gradients = 0;
  std::size_t entry_factors = 0;
  std::size_t ends = 0;
  std::size_t decay_sums = 0;
  std::size_t workspace_bytes = 0;
  double time = 0.0;  // predicted, right enough to compare with others' (walk/plan.h)
};

/// Says why a problem's sizes cannot go by chunks; "" when they can.
std::string reason_against_chunks(const GlaBackwardProblem& problem);

/// `reverse`: in one reverse walk.
ChunkBackwardPlan plan_chunk_backward(const GlaBackwardProblem& problem,
                                      const DeviceProperties& device, bool reverse);

}  // namespace tandem::cuda::gla
