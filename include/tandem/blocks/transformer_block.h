// A layer of a Llama-like transformer, as a sequence of Tandem's ops over one workspace:
//
//   h = x + o_proj(attention(q, k, v))      q, k and v of rms_norm(x), queries and keys rotated
//   out = h + down_proj(f(gate_proj(n)) up_proj(n))                          n = rms_norm(h)
//
// Parameters are named and shaped as in the decoder layers of transformers' Llama, Mistral, Qwen2
// and Qwen3, and as in Python's tandem.nn.TransformerBlock. docs/blocks.md lists the launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tandem/blocks/saved.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/ops/gemm_swiglu.h"
#include "tandem/tensor.h"

namespace tandem {

/// The parameters of a layer and how it computes. d width of the tokens, H query heads, HKV key and
/// value heads (HKV divides H) of K columns, F width of the MLP. Matrices have x's dtype, biases
/// and the norms' weights x's or fp32.
struct TransformerBlock {
  std::int64_t heads = 0;                           ///< H
  std::int64_t key_value_heads = 0;                 ///< HKV
  TensorView input_layernorm;                       ///< [d]
  TensorView q_proj;                                ///< [H*K,d]
  TensorView k_proj;                                ///< [HKV*K,d]
  TensorView v_proj;                                ///< [HKV*K,d]
  std::optional<TensorView> q_bias = std::nullopt;  ///< [H*K], as Qwen2 has it
  std::optional<TensorView> k_bias = std::nullopt;  ///< [HKV*K]
  std::optional<TensorView> v_bias = std::nullopt;  ///< [HKV*K]
  std::optional<TensorView> q_norm = std::nullopt;  ///< [K], of each query, as Qwen3 has it
  std::optional<TensorView> k_norm = std::nullopt;  ///< [K]
  TensorView rope_cos;                              ///< [P,R/2], of P positions, R at most K
  TensorView rope_sin;                              ///< [P,R/2]
  TensorView o_proj;                                ///< [d,H*K]
  std::optional<TensorView> o_bias = std::nullopt;  ///< [d]
  TensorView post_attention_layernorm;              ///< [d]
  TensorView gate_proj;                             ///< [F,d]
  TensorView up_proj;                               ///< [F,d]
  TensorView down_proj;                             ///< [d,F]
  GateActivation activation = GateActivation::kSilu;
  double eps = 1e-6;  ///< of every norm
  /// How many tokens a token sees at most, its own included; absent: all before it.
  std::optional<std::int64_t> window = std::nullopt;
};

/// Keys and values of B sequences, written in place; contiguous, on the tensors' device. Sequence b
/// has lengths[b] tokens, from the front; what is behind them is not read.
struct KeyValueCache {
  TensorView k;        ///< [B,capacity,HKV,K], x's dtype
  TensorView v;        ///< [B,capacity,HKV,K]
  TensorView lengths;  ///< int32 [B]
};

/// x and out are contiguous: bf16 or fp16, on the CPU also fp32 and fp64. T may be 0 without a
/// cache.
struct TransformerBlockForwardArgs {
  TransformerBlock block;
  TensorView x;  ///< [B,T,d]: sequences that begin here, T at most P
  /// int32 [N+1], B = 1, not beside a cache: sequence n is tokens [cu_seqlens[n], cu_seqlens[n+1]),
  /// as attention takes it. None may be longer than P.
  std::optional<TensorView> cu_seqlens = std::nullopt;
  /// Takes the sequences' keys and values in the place of what it holds; T at most its capacity.
  std::optional<KeyValueCache> cache = std::nullopt;
  /// Out, for transformer_block_backward: transformer_block_saved_bytes(args) bytes.
  std::optional<SavedMemory> saved = std::nullopt;
  TensorView out;  ///< out [B,T,d]; may be x where nothing is saved
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. What lies between two ops is rounded to x's dtype. It can be
/// captured in a graph. Throws InvalidArgument, Unsupported or CudaError, as the ops do, which name
/// themselves, before anything but the workspace and what is saved is written.
void transformer_block_forward(const TransformerBlockForwardArgs& args,
                               const Context& context = {});

/// Bytes of workspace that transformer_block_forward(args) needs on a device with these properties,
/// on the CPU too; less with args.saved, where what is saved lies. Reads no tensor data. Throws as
/// transformer_block_forward does.
std::size_t transformer_block_forward_workspace_bytes(const TransformerBlockForwardArgs& args,
                                                      const DeviceProperties& device,
                                                      bool batch_invariant = false);

/// Bytes that transformer_block_forward(args) saves, whatever args.saved is.
std::size_t transformer_block_saved_bytes(const TransformerBlockForwardArgs& args);

/// The gradients by a block's parameters, those that are wanted: shaped as these, of x's dtype or
/// fp32.
struct TransformerBlockGradients {
  std::optional<TensorView> input_layernorm = std::nullopt;
  std::optional<TensorView> q_proj = std::nullopt;
  std::optional<TensorView> k_proj = std::nullopt;
  std::optional<TensorView> v_proj = std::nullopt;
  std::optional<TensorView> q_bias = std::nullopt;
  std::optional<TensorView> k_bias = std::nullopt;
  std::optional<TensorView> v_bias = std::nullopt;
  std::optional<TensorView> q_norm = std::nullopt;
  std::optional<TensorView> k_norm = std::nullopt;
  std::optional<TensorView> o_proj = std::nullopt;
  std::optional<TensorView> o_bias = std::nullopt;
  std::optional<TensorView> post_attention_layernorm = std::nullopt;
  std::optional<TensorView> gate_proj = std::nullopt;
  std::optional<TensorView> up_proj = std::nullopt;
  std::optional<TensorView> down_proj = std::nullopt;
};

/// The gradient of a scalar loss through transformer_block_forward's out, of which block, x,
/// cu_seqlens and what it saved are as they were. Gradients between two ops are rounded to x's
/// dtype. No output may overlap an input or another output.
struct TransformerBlockBackwardArgs {
  TransformerBlock block;
  TensorView x;                                         ///< [B,T,d]
  std::optional<TensorView> cu_seqlens = std::nullopt;  ///< as the forward had it
  SavedMemory saved;                                    ///< as the forward filled it
  TensorView d_out;                                     ///< [B,T,d], contiguous
  std::optional<TensorView> dx = std::nullopt;          ///< out [B,T,d], contiguous
  TransformerBlockGradients gradients = {};             ///< out
  /// Whether `gradients` are added to what is in them, in fp32.
  bool accumulate = false;
};

/// Runs and throws as transformer_block_forward does.
void transformer_block_backward(const TransformerBlockBackwardArgs& args,
                                const Context& context = {});

/// As transformer_block_forward_workspace_bytes.
std::size_t transformer_block_backward_workspace_bytes(const TransformerBlockBackwardArgs& args,
                                                       const DeviceProperties& device,
                                                       bool batch_invariant = false);

/// One more token of each sequence, for decoding: it stands at lengths[b], and lengths[b] grows by
/// one. A captured step may be replayed token by token. A sequence that fills the capacity keeps
/// its cache as it is, and its result is unspecified; positions of P and beyond are those of P - 1.
struct TransformerBlockStepArgs {
  TransformerBlock block;
  TensorView x;         ///< [B,d]
  KeyValueCache cache;  ///< in and out
  TensorView out;       ///< out [B,d]; may be x
};

/// Runs and throws as transformer_block_forward does.
void transformer_block_step(const TransformerBlockStepArgs& args, const Context& context = {});

/// As transformer_block_forward_workspace_bytes.
std::size_t transformer_block_step_workspace_bytes(const TransformerBlockStepArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant = false);

}  // namespace tandem
