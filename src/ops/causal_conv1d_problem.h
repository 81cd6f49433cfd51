// What causal_conv1d's kernels are called with: arguments after every check.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

constexpr int kFewestTaps = 2, kMostTaps = 4;

/// The tokens before a sequence, [N,D,W-1]. Strides in elements.
struct ConvState {
  void* data = nullptr;
  std::int64_t sequence_stride = 0;
  std::int64_t channel_stride = 0;
  std::int64_t token_stride = 0;
};

/// The weight [D,W], or the bias [D] or a gradient: a row per channel.
struct ConvTaps {
  void* data = nullptr;
  std::int64_t channel_stride = 0;
  DType dtype = DType::kFloat32;
};

/// What every call knows of its convolution.
struct CausalConv1d {
  DType dtype = DType::kBFloat16;  // of tokens and states
  Device device;
  std::int64_t B = 0;
  std::int64_t T = 0;
  std::int64_t N = 0;  // sequences: B without cu_seqlens
  int D = 0;
  int W = 0;
  bool silu = false;
  ConvTaps weight;
  ConvTaps bias;  // data null: none
};

/// CausalConv1dForwardArgs after every check.
struct CausalConv1dForwardProblem : CausalConv1d {
  TokenTensor x;
  TokenTensor out;
  ConvState initial_state;                   // data null: zeros
  ConvState final_state;                     // data null: not wanted
  const std::int32_t* cu_seqlens = nullptr;  // [N+1] or null
};

/// CausalConv1dBackwardArgs after every check. Null gradients are not wanted.
struct CausalConv1dBackwardProblem {
  CausalConv1dForwardProblem forward;  // the call that is differentiated, without its outputs
  TokenTensor d_out;
  ConvState d_final_state;  // data null: 0
  TokenTensor dx;
  ConvTaps d_weight;
  ConvTaps d_bias;
  ConvState d_initial_state;

  bool needs_sums() const { return d_weight.data != nullptr || d_bias.data != nullptr; }
};

/// CausalConv1dStepArgs after every check: T is 1.
struct CausalConv1dStepProblem : CausalConv1d {
  MatrixTensor x;
  MatrixTensor out;
  ConvState state;
};

}  // namespace tandem
