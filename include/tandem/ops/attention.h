// Attention in one pass, without its weights in memory:
//
//   s_ij = scale * q_i . k_j         where query i sees key j, else -inf
//   log_sum_exp_i = log(sum_j exp(s_ij))
//   o_i = sum_j exp(s_ij - log_sum_exp_i) v_j
//
// Sources: Vaswani et al., "Attention Is All You Need", 2017; the pass over blocks of keys: Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe and Staats,
// "Self-attention Does Not Need O(n^2) Memory", 2021; Dao, "FlashAttention-2", 2023.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// B batch, TQ queries, TK keys, H query heads, HKV key/value heads (HKV divides H; head h reads
/// key/value head h / (H/HKV)), K key dim, V value dim, N sequences. q, k, v and o share one dtype:
/// bf16 or fp16, on the CPU also fp32 and fp64. With fp64, which is plain and slow, what is fp32
/// below is fp64, arithmetic included. Their innermost stride is 1; bases and strides that are
/// multiples of 16 bytes run at full speed. log_sum_exp, cu_seqlens and lengths_k are contiguous.
///
/// Which keys a query sees: query i of a sequence with Tq queries and Tk keys stands at
/// p = i + Tk - Tq (its last query beside its last key), and sees key j where
/// p - window_left <= j <= p + window_right. A window that is absent has no end on its side; causal
/// is window_right = 0. A query that sees no key, or only keys with s = -inf, has o = 0 and
/// log_sum_exp = -inf.
struct AttentionForwardArgs {
  TensorView q;                                             ///< [B,TQ,H,K]
  TensorView k;                                             ///< [B,TK,HKV,K]
  TensorView v;                                             ///< [B,TK,HKV,V]
  std::optional<double> scale = std::nullopt;               ///< default K^-0.5
  bool causal = false;                                      ///< no window_right but 0 beside it
  std::optional<std::int64_t> window_left = std::nullopt;   ///< at least 0
  std::optional<std::int64_t> window_right = std::nullopt;  ///< at least 0
  /// int32 [N+1] on the tensors' device, both or neither, B = 1: sequence n is queries
  /// [cu_seqlens_q[n], cu_seqlens_q[n+1]) and keys [cu_seqlens_k[n], cu_seqlens_k[n+1]). Empty ones
  /// are allowed. On a GPU the values are not checked but clamped into [0,TQ] and [0,TK]; where
  /// they decrease, results are unspecified, and still nothing else is touched.
  std::optional<TensorView> cu_seqlens_q = std::nullopt;
  std::optional<TensorView> cu_seqlens_k = std::nullopt;
  /// int32 [B] on the tensors' device, not beside cu_seqlens: batch b has lengths_k[b] keys (Tk
  /// above), and what lies behind them in k and v is not read: a cache that is longer than what it
  /// holds. On a GPU clamped into [0,TK].
  std::optional<TensorView> lengths_k = std::nullopt;
  TensorView o;                                          ///< out [B,TQ,H,V]; 0 outside sequences
  std::optional<TensorView> log_sum_exp = std::nullopt;  ///< out fp32 [B,H,TQ]; -inf outside
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. Scores, weights and sums are fp32; on CUDA weights are rounded to
/// q's dtype before they meet v. Bitwise repeatable on one device and build. NaN or inf in one
/// sequence and head reaches no other; within it, it may reach queries that do not see its key.
/// Throws InvalidArgument (shape, dtype, device, stride, overlap, window, workspace; on the CPU
/// also values of cu_seqlens and lengths_k), Unsupported (no variant can run it: the text lists
/// each and why) or CudaError, all before anything is written.
void attention_forward(const AttentionForwardArgs& args, const Context& context = {});

/// Bytes of workspace that attention_forward(args) needs on a device with these properties, with
/// such a Context::batch_invariant; reads no tensor data. Throws as attention_forward does.
std::size_t attention_forward_workspace_bytes(const AttentionForwardArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant = false);

/// The gradient of a scalar loss through attention_forward, whose inputs and outputs are given
/// again; d_o and d_log_sum_exp are the loss's gradients by its outputs. Only the gradients that
/// are asked for are computed:
///
///   p_ij = exp(s_ij - log_sum_exp_i)
///   ds_ij = p_ij (d_o_i . v_j - d_o_i . o_i + d_log_sum_exp_i)
///   dq_i = scale * sum_j ds_ij k_j    dk_j = scale * sum_i ds_ij q_i    dv_j = sum_i p_ij d_o_i
///
/// Heads that share a key/value head add up in dk and dv, always in the same order. Gradients are 0
/// at tokens outside every sequence and at keys behind lengths_k. No output may overlap an input or
/// another output.
struct AttentionBackwardArgs {
  TensorView q;                                ///< [B,TQ,H,K]
  TensorView k;                                ///< [B,TK,HKV,K]
  TensorView v;                                ///< [B,TK,HKV,V]
  std::optional<double> scale = std::nullopt;  ///< what follows: as in the forward
  bool causal = false;
  std::optional<std::int64_t> window_left = std::nullopt;
  std::optional<std::int64_t> window_right = std::nullopt;
  std::optional<TensorView> cu_seqlens_q = std::nullopt;
  std::optional<TensorView> cu_seqlens_k = std::nullopt;
  std::optional<TensorView> lengths_k = std::nullopt;
  TensorView o;                                            ///< [B,TQ,H,V], the forward's
  TensorView log_sum_exp;                                  ///< fp32 [B,H,TQ], the forward's
  TensorView d_o;                                          ///< [B,TQ,H,V], q's dtype
  std::optional<TensorView> d_log_sum_exp = std::nullopt;  ///< fp32 [B,H,TQ]; absent: 0
  std::optional<TensorView> dq = std::nullopt;             ///< out, as q
  std::optional<TensorView> dk = std::nullopt;             ///< out, as k
  std::optional<TensorView> dv = std::nullopt;             ///< out, as v
};

/// Runs and throws as attention_forward does; bitwise repeatable, too.
void attention_backward(const AttentionBackwardArgs& args, const Context& context = {});

/// As attention_forward_workspace_bytes.
std::size_t attention_backward_workspace_bytes(const AttentionBackwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant = false);

}  // namespace tandem
