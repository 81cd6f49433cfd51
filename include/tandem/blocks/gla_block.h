// A layer of gated linear attention with a decay per head and token (simple GLA), as a sequence of
// Tandem's ops over one workspace:
//
//   n = rms_norm(x)
//   q = f(q_proj(n)), k = f(k_proj(n)), v = v_proj(n), log_decay = log_sigmoid(gk_proj(n)) / 16
//   o = gla(q, k, v, log_decay)
//   out = x + o_proj(head_norm(o) silu(g_proj(n)))       head_norm: an RMS norm of each head
//
// Parameters are named and shaped as in fla's SimpleGatedLinearAttention without short convolutions
// and in Python's tandem.nn.GatedLinearAttention; attn_norm as in fla's layers around it.
// docs/blocks.md lists the launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tandem/blocks/saved.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/ops/projection.h"
#include "tandem/tensor.h"

namespace tandem {

/// The parameters of a layer and how it computes. d width of the tokens, H heads of K key and V
/// value columns. Matrices have x's dtype, the bias and the norms' weights x's or fp32.
struct GlaBlock {
  std::int64_t heads = 0;        ///< H
  TensorView attn_norm;          ///< [d]
  TensorView q_proj;             ///< [H*K,d]
  TensorView k_proj;             ///< [H*K,d]
  TensorView v_proj;             ///< [H*V,d]
  TensorView g_proj;             ///< [H*V,d]
  TensorView gk_proj;            ///< [H,d]
  TensorView gk_bias;            ///< [H]
  TensorView g_norm_swish_gate;  ///< [V], of every head's norm
  TensorView o_proj;             ///< [d,H*V]
  /// f, of queries and keys: none, silu or sigmoid.
  Activation feature_map = Activation::kNone;
  double gate_logit_normalizer = 16;  ///< what log_sigmoid is divided by
  double eps = 1e-6;                  ///< of attn_norm
  double head_eps = 1e-5;             ///< of the heads' norm
};

/// x and out are contiguous: bf16 or fp16, on the CPU also fp32 and fp64, with which what is fp32
/// is fp64. States are fp32 [B,H,K,V], or [N,H,K,V] of N packed sequences. T may be 0.
struct GlaBlockForwardArgs {
  GlaBlock block;
  TensorView x;  ///< [B,T,d]
  /// int32 [N+1], B = 1: sequence n is tokens [cu_seqlens[n], cu_seqlens[n+1]), as gla takes it.
  std::optional<TensorView> cu_seqlens = std::nullopt;
  std::optional<TensorView> initial_state = std::nullopt;  ///< before the first tokens; absent: 0
  std::optional<TensorView> final_state = std::nullopt;    ///< out; may be initial_state
  /// Out, for gla_block_backward: gla_block_saved_bytes(args) bytes.
  std::optional<SavedMemory> saved = std::nullopt;
  TensorView out;  ///< out [B,T,d]
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. What lies between two ops is rounded to x's dtype, log_decay is
/// fp32. It can be captured in a graph. No output may overlap an input or another output. Throws
/// InvalidArgument, Unsupported or CudaError, as the ops do, which name themselves, before anything
/// but the workspace and what is saved is written.
void gla_block_forward(const GlaBlockForwardArgs& args, const Context& context = {});

/// Bytes of workspace that gla_block_forward(args) needs on a device with these properties, on the
/// CPU too; less with args.saved, where what is saved lies. Reads no tensor data. Throws as
/// gla_block_forward does.
std::size_t gla_block_forward_workspace_bytes(const GlaBlockForwardArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant = false);

/// Bytes that gla_block_forward(args) saves, whatever args.saved is.
std::size_t gla_block_saved_bytes(const GlaBlockForwardArgs& args);

/// The gradients by a block's parameters, those that are wanted: shaped as these, of x's dtype or
/// fp32.
struct GlaBlockGradients {
  std::optional<TensorView> attn_norm = std::nullopt;
  std::optional<TensorView> q_proj = std::nullopt;
  std::optional<TensorView> k_proj = std::nullopt;
  std::optional<TensorView> v_proj = std::nullopt;
  std::optional<TensorView> g_proj = std::nullopt;
  std::optional<TensorView> gk_proj = std::nullopt;
  std::optional<TensorView> gk_bias = std::nullopt;
  std::optional<TensorView> g_norm_swish_gate = std::nullopt;
  std::optional<TensorView> o_proj = std::nullopt;
};

/// The gradient of a scalar loss through gla_block_forward, of which block, x, cu_seqlens,
/// initial_state and what it saved are as they were. Gradients between two ops are rounded to x's
/// dtype. No output may overlap an input or another output.
struct GlaBlockBackwardArgs {
  GlaBlock block;
  TensorView x;                                              ///< [B,T,d]
  std::optional<TensorView> cu_seqlens = std::nullopt;       ///< as the forward had it
  std::optional<TensorView> initial_state = std::nullopt;    ///< as the forward had it
  SavedMemory saved;                                         ///< as the forward filled it
  TensorView d_out;                                          ///< [B,T,d], contiguous
  std::optional<TensorView> d_final_state = std::nullopt;    ///< absent: 0
  std::optional<TensorView> dx = std::nullopt;               ///< out [B,T,d], contiguous
  std::optional<TensorView> d_initial_state = std::nullopt;  ///< out
  GlaBlockGradients gradients = {};                          ///< out
  /// Whether `gradients` are added to what is in them, in fp32.
  bool accumulate = false;
};

/// Runs and throws as gla_block_forward does.
void gla_block_backward(const GlaBlockBackwardArgs& args, const Context& context = {});

/// As gla_block_forward_workspace_bytes.
std::size_t gla_block_backward_workspace_bytes(const GlaBlockBackwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant = false);

/// One more token of each sequence, for decoding. A captured step may be replayed token by token.
struct GlaBlockStepArgs {
  GlaBlock block;
  TensorView x;      ///< [B,d]
  TensorView state;  ///< in and out [B,H,K,V], fp32 or bf16, as gla_step takes it
  TensorView out;    ///< out [B,d]
};

/// Runs and throws as gla_block_forward does.
void gla_block_step(const GlaBlockStepArgs& args, const Context& context = {});

/// As gla_block_forward_workspace_bytes.
std::size_t gla_block_step_workspace_bytes(const GlaBlockStepArgs& args,
                                           const DeviceProperties& device,
                                           bool batch_invariant = false);

}  // namespace tandem
