// What the kernels of gated_scan are given.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/scan/sequences.h"

namespace tandem::cuda {

/// A chain is the tokens of a batch row, or all packed ones, and a block of channels.
struct ScanParams {
  ScanSequences sequences;
  int D;
  int channel_blocks;
  int ranks;  // CTAs that share a chain, a cluster
  bool log_decay;
  TokenTensor x;
  TokenTensor decay;
  TokenTensor gate;  // data null: none
  const float* initial_state;  // or null
  // Kept for the backward, or null: (B, state_rows, D): before every kStateTokens-th token
  float* states;
  std::int64_t state_rows;
};

struct ScanForwardParams : ScanParams {
  TokenTensor out;     // data null: only `states` is wanted
  float* final_state;  // or null
};

/// Tokens between two kept states: a tile of the backward.
constexpr int kStateTokens = 128;

}  // namespace tandem::cuda
