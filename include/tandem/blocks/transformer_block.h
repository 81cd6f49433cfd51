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

/// x and out are contiguous: bf16 or fp16, on the CPU also fp32 and fp64.
struct TransformerBlockForwardArgs {
  TransformerBlock block;
  TensorView x;  ///< [B,T,d]: sequences that begin here, T at most P
  /// Takes the sequences' keys and values in the place of what it holds; T at most its capacity.
  std::optional<KeyValueCache> cache = std::nullopt;
  TensorView out;  ///< out [B,T,d]; may be x
};

/// Runs on the device of the tensors, on `context.stream` there, without synchronising the host; on
/// the CPU it returns when done. What lies between two ops is rounded to x's dtype. It can be
/// captured in a graph. Throws InvalidArgument, Unsupported or CudaError, as the ops do, which name
/// themselves, before anything but the workspace is written.
void transformer_block_forward(const TransformerBlockForwardArgs& args,
                               const Context& context = {});

/// Bytes of workspace that transformer_block_forward(args) needs on a device with these properties,
/// on the CPU too; reads no tensor data. Throws as transformer_block_forward does.
std::size_t transformer_block_forward_workspace_bytes(const TransformerBlockForwardArgs& args,
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
