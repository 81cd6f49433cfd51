// What gla's kernels are called with: arguments after every check.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

// Floats behind pointers are doubles in a problem whose dtype is fp64, which the CPU alone gets
// (core/real.h).

/// log_decay at (b, t, h); strides are 0 along axes that it does not have. Null data: no decay.
struct DecayTensor {
  const float* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t time_stride = 0;
  std::int64_t head_stride = 0;
};

/// What the state's recurrence reads, after every check, and its axes: every op over tokens has
/// these.
struct GlaRecurrence {
  DType dtype = DType::kBFloat16;  // of all activations
  Device device;
  std::int64_t B = 0;
  std::int64_t T = 0;
  std::int64_t N = 0;  // sequences: B without cu_seqlens
  int H = 0;
  int HQ = 0;
  int K = 0;
  int V = 0;
  StridedTensor k;
  StridedTensor v;
  DecayTensor log_decay;
  const std::int32_t* cu_seqlens = nullptr;  // [N+1] or null
};

constexpr int kSavedStateTokens = 128;

/// GlaForwardArgs after every check: shapes agree, dtypes and devices fit, nothing overlaps.
struct GlaForwardProblem : GlaRecurrence {
  float scale = 1.0f;
  float scale_rest = 0.0f;  // what rounding took from scale: for fp64
  StridedTensor q;
  StridedTensor o;
  const float* initial_state = nullptr;  // [N,H,K,V] or null
  float* final_state = nullptr;          // [N,H,K,V] or null
  // [B,ceil(T/kSavedStateTokens),H,V,K] of `dtype`, or null: the states before every so many
  // tokens. A forward writes them, its backward reads them.
  void* saved_states = nullptr;
};

/// GlaStateForwardArgs after every check.
struct GlaStateForwardProblem : GlaRecurrence {
  float* state = nullptr;            // [N,H,K,V]
  float* total_log_decay = nullptr;  // [N,H]
};

/// A [B,H,K,V] state whose innermost stride is 1. Strides in elements.
struct StateTensor {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t key_stride = 0;
};

/// GlaStepArgs after every check: T = 1, time strides are 0.
struct GlaStepProblem : GlaRecurrence {
  float scale = 1.0f;
  float scale_rest = 0.0f;
  StridedTensor q;
  StridedTensor o;
  DType state_dtype = DType::kFloat32;  // fp32 or bf16, or fp64 as all else
  StateTensor state;
};

/// The gradient by a DecayTensor, laid out as one.
struct DecayGradient {
  float* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t time_stride = 0;
  std::int64_t head_stride = 0;
  bool per_token = false;  // else [H]
};

/// GlaBackwardArgs after every check. Null gradients are not wanted; a null d_final_state is 0.
struct GlaBackwardProblem {
  GlaForwardProblem forward;  // the call that is differentiated, without its outputs
  StridedTensor d_o;
  const float* d_final_state = nullptr;  // [N,H,K,V]
  StridedTensor dq;
  StridedTensor dk;
  StridedTensor dv;
  DecayGradient d_log_decay;
  float* d_initial_state = nullptr;  // [N,H,K,V]

  /// Whether some gradient needs the forward's states, or the gradients by them.
  bool needs_states() const { return dq.data || d_log_decay.data; }
  bool needs_state_gradients() const {
    return dk.data || dv.data || d_log_decay.data || d_initial_state;
  }
};

/// GlaStateBackwardArgs after every check: the recurrence's k is q, and its v is d_o.
struct GlaStateBackwardProblem : GlaRecurrence {
  float scale = 1.0f;
  float scale_rest = 0.0f;
  float* d_state = nullptr;          // [N,H,K,V]
  float* total_log_decay = nullptr;  // [N,H]
};

}  // namespace tandem
