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
/// on the CPU also fp32. Their innermost stride is 1; bases and strides that are multiples of 16
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
  /// into [0,T].
  std::optional<TensorView> cu_seqlens = std::nullopt;
  TensorView o;  ///< out [B,T,H,V]; 0 at tokens outside every sequence
  std::optional<TensorView> final_state =
      std::nullopt;  ///< out fp32, as initial_state, which it may share memory with
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. Accumulates in fp32. Bitwise repeatable on one device and build.
/// Throws InvalidArgument (shape, dtype, device, stride, overlap, workspace; on the CPU also
/// cu_seqlens values), Unsupported (no variant can run it: the text lists each and why) or
/// CudaError, all before anything is written.
void gla_forward(const GlaForwardArgs& args, const Context& context = {});

/// Bytes of workspace that gla_forward(args) needs on a device with these properties; reads no
/// tensor data. Throws as gla_forward does.
std::size_t gla_forward_workspace_bytes(const GlaForwardArgs& args, const DeviceProperties& device);

}  // namespace tandem
