// A layer of Mamba-2, as a sequence of Tandem's ops over one workspace:
//
//   z, xBC, dt = in_proj(rms_norm(x))          x, B, C = silu(conv1d(xBC)), every channel on its
//   own dt = softplus(dt + dt_bias), clamped state = exp(-dt exp(A_log)) state + B (dt x)^T per
//   head y = C^T state + D x out = x + out_proj(norm(y silu(z)))                     the norm per
//   group
//
// Parameters are named and shaped as in transformers' Mamba2Mixer and mamba_ssm's Mamba2 without
// biases of the products, and as in Python's tandem.nn.Mamba2; input_norm is the norm in front of
// it. docs/blocks.md lists the launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "tandem/blocks/saved.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// The parameters of a layer and how it computes. d width of the tokens, H heads of P columns, G
/// groups of B and C, N columns each, which neighbouring heads share (G divides H), E = H*P + 2*G*N
/// channels of the convolution, W taps from 2 to 4. Matrices have x's dtype, all else x's or fp32.
struct Mamba2Block {
  std::int64_t heads = 0;    ///< H
  std::int64_t groups = 1;   ///< G
  TensorView input_norm;     ///< [d]
  TensorView in_proj;        ///< [H*P+E+H,d]: z, then x, B and C, then dt
  TensorView conv1d_weight;  ///< [E,W]
  std::optional<TensorView> conv1d_bias = std::nullopt;  ///< [E]
  TensorView dt_bias;                                    ///< [H]
  TensorView A_log;                                      ///< [H]
  TensorView D;                                          ///< [H]
  TensorView norm;                                       ///< [H*P]
  TensorView out_proj;                                   ///< [d,H*P]
  double dt_min = 0;                                     ///< what dt is clamped to
  double dt_max = std::numeric_limits<double>::infinity();
  double eps = 1e-5;  ///< of both norms
};

/// What a sequence leaves to its next tokens, of B sequences or of N packed ones.
struct Mamba2States {
  TensorView conv;   ///< [B,E,W-1], x's dtype: the last W-1 tokens of xBC, the oldest first
  TensorView state;  ///< fp32 [B,H,N,P], contiguous; of a step also bf16, as gla_step takes it
};

/// x and out are contiguous: bf16 or fp16, on the CPU also fp32 and fp64, with which what is fp32
/// is fp64. T may be 0.
struct Mamba2BlockForwardArgs {
  Mamba2Block block;
  TensorView x;  ///< [B,T,d]
  /// int32 [N+1], B = 1: sequence n is tokens [cu_seqlens[n], cu_seqlens[n+1]), as gla takes it.
  std::optional<TensorView> cu_seqlens = std::nullopt;
  std::optional<Mamba2States> initial_states = std::nullopt;  ///< absent: 0
  /// Out; its `state` may be the initial one, its `conv` not.
  std::optional<Mamba2States> final_states = std::nullopt;
  /// Out, for mamba2_block_backward: mamba2_block_saved_bytes(args) bytes.
  std::optional<SavedMemory> saved = std::nullopt;
  TensorView out;  ///< out [B,T,d]
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. What lies between two ops is rounded to x's dtype, dt and the
/// decay are fp32. It can be captured in a graph. No output may overlap an input or another output.
/// Throws InvalidArgument, Unsupported or CudaError, as the ops do, which name themselves, before
/// anything but the workspace and what is saved is written.
void mamba2_block_forward(const Mamba2BlockForwardArgs& args, const Context& context = {});

/// Bytes of workspace that mamba2_block_forward(args) needs on a device with these properties, on
/// the CPU too; less with args.saved, where what is saved lies. Reads no tensor data. Throws as
/// mamba2_block_forward does.
std::size_t mamba2_block_forward_workspace_bytes(const Mamba2BlockForwardArgs& args,
                                                 const DeviceProperties& device,
                                                 bool batch_invariant = false);

/// Bytes that mamba2_block_forward(args) saves, whatever args.saved is.
std::size_t mamba2_block_saved_bytes(const Mamba2BlockForwardArgs& args);

/// The gradients by a block's parameters, those that are wanted: shaped as these. Those of the
/// convolution have its dtypes, the others x's or fp32.
struct Mamba2BlockGradients {
  std::optional<TensorView> input_norm = std::nullopt;
  std::optional<TensorView> in_proj = std::nullopt;
  std::optional<TensorView> conv1d_weight = std::nullopt;
  std::optional<TensorView> conv1d_bias = std::nullopt;
  std::optional<TensorView> dt_bias = std::nullopt;
  std::optional<TensorView> A_log = std::nullopt;
  std::optional<TensorView> D = std::nullopt;
  std::optional<TensorView> norm = std::nullopt;
  std::optional<TensorView> out_proj = std::nullopt;
};

/// The gradient of a scalar loss through mamba2_block_forward, of which block, x, cu_seqlens,
/// initial_states and what it saved are as they were. Gradients between two ops are rounded to x's
/// dtype. No output may overlap an input or another output.
struct Mamba2BlockBackwardArgs {
  Mamba2Block block;
  TensorView x;                                                 ///< [B,T,d]
  std::optional<TensorView> cu_seqlens = std::nullopt;          ///< as the forward had it
  std::optional<Mamba2States> initial_states = std::nullopt;    ///< as the forward had them
  SavedMemory saved;                                            ///< as the forward filled it
  TensorView d_out;                                             ///< [B,T,d], contiguous
  std::optional<Mamba2States> d_final_states = std::nullopt;    ///< absent: 0
  std::optional<TensorView> dx = std::nullopt;                  ///< out [B,T,d], contiguous
  std::optional<Mamba2States> d_initial_states = std::nullopt;  ///< out
  Mamba2BlockGradients gradients = {};                          ///< out
};

/// Runs and throws as mamba2_block_forward does.
void mamba2_block_backward(const Mamba2BlockBackwardArgs& args, const Context& context = {});

/// As mamba2_block_forward_workspace_bytes.
std::size_t mamba2_block_backward_workspace_bytes(const Mamba2BlockBackwardArgs& args,
                                                  const DeviceProperties& device,
                                                  bool batch_invariant = false);

/// One more token of each sequence, for decoding. A captured step may be replayed token by token.
struct Mamba2BlockStepArgs {
  Mamba2Block block;
  TensorView x;         ///< [B,d]
  Mamba2States states;  ///< in and out
  TensorView out;       ///< out [B,d]
};

/// Runs and throws as mamba2_block_forward does.
void mamba2_block_step(const Mamba2BlockStepArgs& args, const Context& context = {});

/// As mamba2_block_forward_workspace_bytes.
std::size_t mamba2_block_step_workspace_bytes(const Mamba2BlockStepArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant = false);

}  // namespace tandem
