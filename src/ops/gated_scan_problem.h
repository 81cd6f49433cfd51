// What gated_scan's kernels are called with: arguments after every check.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

// Floats behind pointers are doubles in a problem whose dtype is fp64, which the CPU alone gets
// (core/real.h).

/// What the recurrence reads beside x, after every check, and its axes.
struct ScanRecurrence {
  DType dtype = DType::kBFloat16;        // of all activations
  DType decay_dtype = DType::kBFloat16;  // dtype or fp32
  Device device;
  std::int64_t B = 0;
  std::int64_t T = 0;
  std::int64_t N = 0;  // sequences: B without cu_seqlens
  int D = 0;
  bool log_decay = false;                    // decay holds the natural log of a
  TokenTensor decay;                         // [B,T,D] of decay_dtype
  TokenTensor gate;                          // [B,T,D], data null: no gate
  const float* initial_state = nullptr;      // [N,D] or null
  const std::int32_t* cu_seqlens = nullptr;  // [N+1] or null
};

/// GatedScanForwardArgs after every check: shapes agree, dtypes and devices fit, nothing overlaps.
struct GatedScanForwardProblem : ScanRecurrence {
  TokenTensor x;
  TokenTensor out;
  float* final_state = nullptr;  // [N,D] or null
  float* states = nullptr;       // as in ScanGradients
};

/// Tokens between two states that a forward keeps for its backward.
constexpr int kKeptStateTokens = 128;

/// What every scan's gradients are computed from, and its gradients by what it reads beside x. Null
/// gradients are not wanted; a null d_final_state is 0.
struct ScanGradients {
  TokenTensor d_out;
  const float* d_final_state = nullptr;  // [N,D]
  // [B,ceil(T/kKeptStateTokens),D]: the states before every so many tokens of a batch row, or null:
  // they are computed again. Where a sequence begins, or outside of all, they hold anything.
  const float* states = nullptr;
  TokenTensor d_decay;  // of decay_dtype, by the decay or its log, whichever was given
  TokenTensor d_gate;
  float* d_initial_state = nullptr;  // [N,D]
};

/// GatedScanBackwardArgs after every check.
struct GatedScanBackwardProblem : ScanGradients {
  GatedScanForwardProblem forward;  // the call that is differentiated, without its outputs
  TokenTensor dx;

  /// Whether some gradient needs the forward's states, or the gradients by them.
  bool needs_states() const { return d_decay.data || d_gate.data; }
  bool needs_state_gradients() const { return dx.data || d_decay.data || d_initial_state; }
};

}  // namespace tandem
