// What a backward of wide heads takes, its workspace and its predicted time.
#pragma once

#include <cstddef>
#include <string>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

// Tokens of a span, between states that are kept; of a block of rows of one gradient.
constexpr int kWideChunks = 4;  // of 64 tokens
constexpr int kWideSpan = 64 * kWideChunks;
constexpr int kWideRows = 128;
constexpr int kWideBlocks = kWideSpan / kWideRows;
constexpr int kWideKeys = 128;        // columns of K that a CTA walks, of one or two such parts
constexpr int kWideDecayBytes = 784;  // of a WideDecay

/// What there is to make of a block of rows: dq, dk, and dv by as many columns as K has.
constexpr int wide_kinds(int value_panels, int key_parts) {
  const int columns = key_parts * kWideKeys;
  return 2 + (64 * value_panels + columns - 1) / columns;
}

struct WideBackwardPlan {
  int spans = 0;         // per sequence
  int value_panels = 0;  // of 64 columns of V
  int key_parts = 0;     // of kWideKeys columns of K
  int slab_heads = 0;    // of B * H: those of one launch, all or as many as have room
  double time = 0.0;     // microseconds, predicted
  // Offsets into the workspace, 256-byte aligned.
  std::size_t decays = 0;           // WideDecay [slab_heads,spans,4]
  std::size_t states = 0;           // 16 bits [slab_heads,spans,value_panels,64,key_parts,128]
  std::size_t state_gradients = 0;  // the same
  std::size_t query_rows = 0;       // fp32 [slab_heads,spans,256], as the next two
  std::size_t key_rows = 0;
  std::size_t key_state_rows = 0;
  std::size_t decay_sums = 0;  // fp32 [B,H,spans], of a constant decay
  std::size_t workspace_bytes = 0;
};

/// Says why a problem's sizes cannot go this way; "" when they can.
std::string reason_against_wide(const GlaBackwardProblem& problem);

/// Plans a call. Its workspace takes no more than `most_bytes` where heads in turn are enough for
/// that.
WideBackwardPlan plan_wide_backward(const GlaBackwardProblem& problem,
                                    const DeviceProperties& device, std::size_t most_bytes);

}  // namespace tandem::cuda::gla
