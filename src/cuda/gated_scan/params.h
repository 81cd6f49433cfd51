// What the kernels of gated_scan are given.
#pragma once

#include "core/strided_tensor.h"
#include "cuda/scan/sequences.h"
#include "ops/gated_scan_problem.h"

namespace tandem::cuda::gated_scan {

using namespace scan;

/// A chain is the tokens of a batch row, or all packed ones, and a block of channels.
struct ChainParams {
  ScanSequences sequences;
  int D;
  int channel_blocks;
  int ranks;  // CTAs that share a chain, a cluster
  bool log_decay;
  TokenTensor x;
  TokenTensor decay;
  TokenTensor gate;            // data null: none
  const float* initial_state;  // or null
  // States before every kStateTokens-th token (B, state_rows, D), kept for the backward; or null
  float* states;
  std::int64_t state_rows;
};

struct ForwardParams : ChainParams {
  TokenTensor out;
  float* final_state;  // or null
  TokenTensor x_rest;  // the second part of a product's x
};

struct BackwardParams : ChainParams {  // states null: no gradient asks for them
  bool states_given;                   // they are there before the kernel begins
  TokenTensor d_out;
  const float* d_final_state;  // or null: 0
  // Gradients; data null: not wanted.
  TokenTensor dx;
  TokenTensor d_decay;  // by the decay, or its log if that is given
  TokenTensor d_gate;
  float* d_initial_state;
};

/// Tokens between two kept states: a tile of the backward.
constexpr int kStateTokens = kKeptStateTokens;

}  // namespace tandem::cuda::gated_scan
