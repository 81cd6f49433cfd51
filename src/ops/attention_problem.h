// What attention's kernels are called with: arguments after every check.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

// Floats behind pointers are doubles in a problem whose dtype is fp64, which the CPU alone gets
// (core/real.h).

/// Which keys a query sees. Query i of a sequence with Tq queries and Tk keys stands at
/// p = i + Tk - Tq (the last query beside the last key) and sees key j where p - left <= j <=
/// p + right.
struct AttentionMask {
  static constexpr std::int64_t kUnlimited = -1;
  std::int64_t left = kUnlimited;
  std::int64_t right = kUnlimited;  // causal: 0
};

/// Axes that attention's calls share: B batch, TQ queries, TK keys, N sequences, H query heads, HKV
/// key and value heads (HKV divides H; head h reads key head h / (H/HKV)), K and V head dims.
struct AttentionSizes {
  DType dtype = DType::kBFloat16;  // of all activations
  Device device;
  std::int64_t B = 0;
  std::int64_t TQ = 0;
  std::int64_t TK = 0;
  std::int64_t N = 0;  // sequences: B without cu_seqlens
  int H = 0;
  int HKV = 0;
  int K = 0;
  int V = 0;
  float scale = 1.0f;
  float scale_rest = 0.0f;  // what rounding took from scale: for fp64
  AttentionMask mask;
  const std::int32_t* cu_seqlens_q = nullptr;  // [N+1], both or none
  const std::int32_t* cu_seqlens_k = nullptr;  // [N+1]
  const std::int32_t* lengths_k = nullptr;     // [B] or null: keys behind them do not exist
};

/// AttentionForwardArgs after every check: shapes agree, dtypes and devices fit, nothing overlaps.
struct AttentionForwardProblem : AttentionSizes {
  StridedTensor q;               // [B,TQ,H,K]
  StridedTensor k;               // [B,TK,HKV,K]
  StridedTensor v;               // [B,TK,HKV,V]
  StridedTensor o;               // [B,TQ,H,V]
  float* log_sum_exp = nullptr;  // [B,H,TQ] or null; -inf where a query sees no key
};

/// AttentionBackwardArgs after every check. Null gradients are not wanted; a null d_log_sum_exp is
/// 0.
struct AttentionBackwardProblem {
  AttentionForwardProblem forward;       // the call that is differentiated, with its outputs
  StridedTensor d_o;                     // [B,TQ,H,V]
  const float* d_log_sum_exp = nullptr;  // [B,H,TQ]
  StridedTensor dq;
  StridedTensor dk;
  StridedTensor dv;
};

}  // namespace tandem
