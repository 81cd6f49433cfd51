// Depthwise causal convolution along time, the short convolution in front of Mamba's, Mamba-2's and
// other linear models' recurrences, with its activation.
//
//   z_t = bias + sum over w of weight_w x_{t-(W-1)+w}       w from 0 to W-1
//   out_t = z_t  or  silu(z_t)                              silu(z) = z / (1 + exp(-z))
//
// every channel on its own. What precedes a sequence's first token is its initial state, or 0.
// docs/ops/causal_conv1d.md says more.
#pragma once

#include <cstddef>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// B batch, T time, D channels, W from 2 to 4 taps, N sequences. x, the states and out share one
/// dtype: bf16, fp16 or fp32, on the CPU also fp64. With fp64, which is plain, all is fp64,
/// arithmetic included. The innermost stride of x, out, the weight and the bias is 1, the others
/// are free, as are all of a state; bases and strides of x and out that are multiples of 16 bytes
/// run at full speed, anything else runs slower. cu_seqlens is contiguous.
struct CausalConv1dForwardArgs {
  TensorView x;  ///< [B,T,D]
  /// [D,W], x's dtype or fp32: the last column is for the token itself, as in torch's conv1d with
  /// padding in front.
  TensorView weight;
  std::optional<TensorView> bias = std::nullopt;  ///< [D], x's dtype or fp32
  bool silu = false;                              ///< whether out is silu(z)
  /// The W-1 tokens before the first, the oldest first: [B,D,W-1]; [N,D,W-1] with cu_seqlens.
  std::optional<TensorView> initial_state = std::nullopt;
  /// int32 [N+1] on the tensors' device, B = 1: sequence n is tokens [cu_seqlens[n],
  /// cu_seqlens[n+1]). Empty sequences are allowed. On a GPU the values are not checked but clamped
  /// into [0,T].
  std::optional<TensorView> cu_seqlens = std::nullopt;
  TensorView out;  ///< out [B,T,D]; 0 at tokens outside every sequence
  /// Out, as initial_state, which it may not overlap: the last W-1 tokens, of a sequence that has
  /// fewer with the end of its initial state in front.
  std::optional<TensorView> final_state = std::nullopt;
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. Sums in fp32, of fp64 in fp64, and rounds once. A row's bits do
/// not depend on what else is in the call. Throws InvalidArgument (shape, dtype, device, stride,
/// overlap; on the CPU also cu_seqlens values), Unsupported (no variant can run it: the text lists
/// each and why) or CudaError, all before anything is written.
void causal_conv1d_forward(const CausalConv1dForwardArgs& args, const Context& context = {});

/// Bytes of workspace that causal_conv1d_forward(args) needs on a device with these properties;
/// reads no tensor data. Throws as causal_conv1d_forward does.
std::size_t causal_conv1d_forward_workspace_bytes(const CausalConv1dForwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant = false);

/// The gradient of a scalar loss through causal_conv1d_forward. The inputs are those of the forward
/// call; d_out and d_final_state are the loss's gradients by its outputs. z is computed again. With
/// dz_t = d_out_t or silu'(z_t) d_out_t, 0 at tokens of no sequence, only what is asked for of
///
///   dx_t = sum over w of weight_w dz_{t+(W-1)-w}, and d_final_state's where t is in the last W-1
///   d_weight_w = sum over t of x_{t-(W-1)+w} dz_t        d_bias = sum over t of dz_t
///   d_initial_state as dx, of the tokens that it stands for
///
/// over the tokens of the same sequence. Gradients at tokens outside every sequence are 0. No
/// output may overlap an input or another output.
struct CausalConv1dBackwardArgs {
  TensorView x;                                              ///< as in CausalConv1dForwardArgs
  TensorView weight;                                         ///< as in CausalConv1dForwardArgs
  std::optional<TensorView> bias = std::nullopt;             ///< as in CausalConv1dForwardArgs
  bool silu = false;                                         ///< as in CausalConv1dForwardArgs
  std::optional<TensorView> initial_state = std::nullopt;    ///< as in CausalConv1dForwardArgs
  std::optional<TensorView> cu_seqlens = std::nullopt;       ///< as in CausalConv1dForwardArgs
  TensorView d_out;                                          ///< [B,T,D], x's dtype
  std::optional<TensorView> d_final_state = std::nullopt;    ///< as final_state
  std::optional<TensorView> dx = std::nullopt;               ///< out, as x
  std::optional<TensorView> d_weight = std::nullopt;         ///< out, as weight
  std::optional<TensorView> d_bias = std::nullopt;           ///< out, as bias, which it needs
  std::optional<TensorView> d_initial_state = std::nullopt;  ///< out, as initial_state
};

/// Runs and throws as causal_conv1d_forward does. Sums of the weight's and the bias's gradients are
/// fp32, in an order that the shape decides.
void causal_conv1d_backward(const CausalConv1dBackwardArgs& args, const Context& context = {});

/// Bytes of workspace that causal_conv1d_backward(args) needs; as
/// causal_conv1d_forward_workspace_bytes.
std::size_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant = false);

/// One token of causal_conv1d_forward per sequence, for decoding. The tensors are its own, of one
/// token.
struct CausalConv1dStepArgs {
  TensorView x;                                   ///< [B,D]
  TensorView weight;                              ///< [D,W], as in CausalConv1dForwardArgs
  std::optional<TensorView> bias = std::nullopt;  ///< [D]
  bool silu = false;
  /// In and out [B,D,W-1], x's dtype, any strides: the tokens before this one, then up to this one.
  TensorView state;
  TensorView out;  ///< out [B,D]
};

/// Runs and throws as causal_conv1d_forward does; needs no workspace.
void causal_conv1d_step(const CausalConv1dStepArgs& args, const Context& context = {});

}  // namespace tandem
