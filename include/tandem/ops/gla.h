// Gated linear attention with a scalar decay per head: the chunkwise linear RNN that simple GLA,
// RetNet, lightning attention and Mamba-2 SSD share.
//
//   S_t = exp(g_t) S_{t-1} + k_t v_t^T      S [K,V] per head, S_0 = initial_state or 0
//   o_t = scale * q_t^T S_t
//
// Mamba-2 SSD: q = C, k = B, v = x * dt, log_decay = dt * A. RetNet and lightning attention: a
// constant decay per head. Source of the chunkwise form: Yang et al., "Gated Linear Attention
// Transformers with Hardware-Efficient Training", 2024; Dao and Gu, "Transformers are SSMs", 2024.
#pragma once

#include <cstddef>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// B batch, T time, H value heads, HQ query/key heads (HQ divides H; head h reads query/key head
/// h / (H/HQ)), K key dim, V value dim, N sequences. q, k, v and o share one dtype: bf16 or fp16,
/// on the CPU also fp32 and fp64. With fp64, which is plain and slow, what is fp32 below is fp64,
/// arithmetic included. Their innermost stride is 1; bases and strides that are multiples of 16
/// bytes run at full speed, anything else runs slower. log_decay may have any strides; states and
/// cu_seqlens are contiguous.
struct GlaForwardArgs {
  TensorView q;  ///< [B,T,HQ,K]
  TensorView k;  ///< [B,T,HQ,K]
  TensorView v;  ///< [B,T,H,V]
  /// Natural log of the decay, fp32: absent (no decay), [H] (constant per head) or [B,T,H] (per
  /// token). -inf forgets everything before the token, exactly; positive values grow the state.
  std::optional<TensorView> log_decay = std::nullopt;
  std::optional<double> scale = std::nullopt;  ///< default K^-0.5
  std::optional<TensorView> initial_state =
      std::nullopt;  ///< fp32 [B,H,K,V]; [N,H,K,V] with cu_seqlens
  /// int32 [N+1] on the tensors' device, B = 1: sequence n is tokens [cu_seqlens[n],
  /// cu_seqlens[n+1]). Empty sequences are allowed. On a GPU the values are not checked but clamped
  /// into [0,T]; where they decrease, results are unspecified, and still nothing else is touched.
  std::optional<TensorView> cu_seqlens = std::nullopt;
  TensorView o;  ///< out [B,T,H,V]; 0 at tokens outside every sequence
  std::optional<TensorView> final_state =
      std::nullopt;  ///< out fp32, as initial_state, which it may share memory with
  /// out [B,ceil(T/128),H,V,K], q's dtype, contiguous, not with cu_seqlens: the states before the
  /// tokens 0, 128, 256, ..., transposed and rounded. For gla_backward, which with them does not
  /// make them again; they take as much memory as v does, times K/128.
  std::optional<TensorView> saved_states = std::nullopt;
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. Accumulates in fp32; products take the state rounded to q's dtype,
/// so that fp16 ends where an element of the state passes 65504 (no decay, many tokens, k and v
/// that go together), and bf16 does not. Bitwise repeatable on one device and build: the same call
/// gives the same bits, but a row's bits depend on B, H and T of its call. Throws InvalidArgument
/// (shape, dtype, device, stride, overlap, workspace; on the CPU also cu_seqlens values),
/// Unsupported (no variant can run it: the text lists each and why) or CudaError, all before
/// anything is written.
void gla_forward(const GlaForwardArgs& args, const Context& context = {});

/// Bytes of workspace that gla_forward(args) needs on a device with these properties, with such a
/// Context::batch_invariant; reads no tensor data. Throws as gla_forward does.
std::size_t gla_forward_workspace_bytes(const GlaForwardArgs& args, const DeviceProperties& device,
                                        bool batch_invariant = false);

/// The state that a span of tokens leaves behind when it begins with none, and how much of a state
/// before the span outlives it:
///
///   state = sum_t exp(g_{t+1} + ... + g_T) k_t v_t^T        total_log_decay = sum_t g_t
///   state after the span = exp(total_log_decay) * state before it + state
///
/// Sequence parallelism needs just this. With a sequence cut into P consecutive spans, rank p holds
/// span p: each rank calls gla_state_forward, the ranks exchange the results (K*V + 1 numbers per
/// head, whatever T is), and each forms the state that its span begins with, in order,
///
///   S_0 = the sequence's initial state or 0,   S_{p+1} = exp(total_log_decay_p) S_p + state_p
///
/// which is the initial_state of its gla_forward. Outputs and the last final_state are then those
/// of the uncut sequence. A span may be empty. exp(-inf) = 0 must forget S_p whatever it holds.
///
/// Axes, dtypes and strides as in GlaForwardArgs.
struct GlaStateForwardArgs {
  TensorView k;                                         ///< [B,T,HQ,K]
  TensorView v;                                         ///< [B,T,H,V]
  std::optional<TensorView> log_decay = std::nullopt;   ///< absent, [H] or [B,T,H], fp32
  std::optional<TensorView> cu_seqlens = std::nullopt;  ///< int32 [N+1], B = 1
  TensorView state;  ///< out fp32 [B,H,K,V]; [N,H,K,V] with cu_seqlens; 0 without tokens
  /// out fp32 [B,H]; [N,H] with cu_seqlens. 0 without tokens or decay, -inf where a token forgets
  /// everything before it: its exp(log_decay) is 0 in fp32.
  TensorView total_log_decay;
};

/// Runs, and throws, as gla_forward does.
void gla_state_forward(const GlaStateForwardArgs& args, const Context& context = {});

/// As gla_forward_workspace_bytes.
std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant = false);

/// One token per sequence, for decoding: the recurrence above with the state in place.
///   S = exp(g) S + k v^T,  o = scale * q^T S
/// Axes, dtypes and strides as in GlaForwardArgs, without the time axis.
struct GlaStepArgs {
  TensorView q;                                        ///< [B,HQ,K]
  TensorView k;                                        ///< [B,HQ,K]
  TensorView v;                                        ///< [B,H,V]
  std::optional<TensorView> log_decay = std::nullopt;  ///< fp32: absent, [H] or [B,H]
  std::optional<double> scale = std::nullopt;          ///< default K^-0.5
  /// In and out [B,H,K,V], fp32 or bf16 as stored (fp64 beside fp64); arithmetic is fp32 either
  /// way. Innermost stride 1, other strides free (a slice of a larger cache); at full speed where
  /// base and strides are multiples of 16 bytes and V of 4 (fp32) or 8 (bf16). May not overlap the
  /// other tensors.
  TensorView state;
  TensorView o;  ///< out [B,H,V], of the state before it is rounded to its storage
};

/// Runs as gla_forward does, on one token, and needs no workspace. The call replaces `state`:
/// enqueue it once per token. Throws InvalidArgument, Unsupported or CudaError, all before anything
/// is written.
void gla_step(const GlaStepArgs& args, const Context& context = {});

/// The gradient of a scalar loss through gla_forward. The inputs are those of the forward call;
/// d_o and d_final_state are the loss's gradients by its outputs. Only the gradients that are asked
/// for are computed. With dS_t the gradient by S_t (docs/ops/gla_backward.md derives the rest):
///
///   dS_t = scale * q_t d_o_t^T + exp(g_{t+1}) dS_{t+1}      dS_{T+1} = d_final_state or 0
///   dq_t = scale * S_t d_o_t    dk_t = dS_t v_t    dv_t = dS_t^T k_t
///   dg_t = exp(g_t) <S_{t-1}, dS_t>                         0 where g_t = -inf
///
/// Heads that share a query/key head add up in dq and dk, and tokens and batches in the gradient of
/// a constant decay, always in the same order. The latter's terms mostly cancel, their errors do
/// not: in bf16 on CUDA it is 1 to 5 % off (relative RMS over heads at B2 H8 T1024 K64, decays
/// -0.05 to -1.05). Gradients at tokens outside every sequence are 0; an empty sequence has
/// d_initial_state = d_final_state. No output may overlap an input or another output.
struct GlaBackwardArgs {
  TensorView q;                                            ///< [B,T,HQ,K]
  TensorView k;                                            ///< [B,T,HQ,K]
  TensorView v;                                            ///< [B,T,H,V]
  std::optional<TensorView> log_decay = std::nullopt;      ///< as in GlaForwardArgs
  std::optional<double> scale = std::nullopt;              ///< default K^-0.5
  std::optional<TensorView> initial_state = std::nullopt;  ///< as in GlaForwardArgs
  std::optional<TensorView> cu_seqlens = std::nullopt;     ///< as in GlaForwardArgs
  /// Of gla_forward on these inputs, or none: then they are made again. Not with cu_seqlens. Read
  /// where that is faster, which it is on a GPU with K, V <= 128, or K <= 256 and V <= 64.
  std::optional<TensorView> saved_states = std::nullopt;
  TensorView d_o;                                            ///< [B,T,H,V], q's dtype
  std::optional<TensorView> d_final_state = std::nullopt;    ///< fp32 [B,H,K,V] or [N,H,K,V]
  std::optional<TensorView> dq = std::nullopt;               ///< out, as q
  std::optional<TensorView> dk = std::nullopt;               ///< out, as k
  std::optional<TensorView> dv = std::nullopt;               ///< out, as v
  std::optional<TensorView> d_log_decay = std::nullopt;      ///< out fp32, log_decay's shape
  std::optional<TensorView> d_initial_state = std::nullopt;  ///< out fp32, as d_final_state
};

/// Runs and throws as gla_forward does; bitwise repeatable, too.
void gla_backward(const GlaBackwardArgs& args, const Context& context = {});

/// As gla_forward_workspace_bytes.
std::size_t gla_backward_workspace_bytes(const GlaBackwardArgs& args,
                                         const DeviceProperties& device,
                                         bool batch_invariant = false);

/// What a span of tokens adds to the gradient by the state before it, from q, d_o and the decay
/// alone, and the span's total log-decay. For a sequence cut into spans, each on its own device:
///
///   d_state of the span's begin = exp(total_log_decay) * d_state of its end + d_state
///
/// so the spans' results, combined from the last to the first, give each its d_final_state.
struct GlaStateBackwardArgs {
  TensorView q;                                         ///< [B,T,HQ,K]
  TensorView d_o;                                       ///< [B,T,H,V]
  std::optional<TensorView> log_decay = std::nullopt;   ///< absent, [H] or [B,T,H], fp32
  std::optional<double> scale = std::nullopt;           ///< default K^-0.5
  std::optional<TensorView> cu_seqlens = std::nullopt;  ///< int32 [N+1], B = 1
  TensorView d_state;  ///< out fp32 [B,H,K,V]; [N,H,K,V] with cu_seqlens; 0 without tokens
  /// out fp32 [B,H]; [N,H] with cu_seqlens. 0 without tokens or decay, -inf where a token forgets
  /// everything before it: its exp(log_decay) is 0 in fp32.
  TensorView total_log_decay;
};

/// Runs and throws as gla_forward does.
void gla_state_backward(const GlaStateBackwardArgs& args, const Context& context = {});

/// As gla_forward_workspace_bytes.
std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant = false);

}  // namespace tandem
