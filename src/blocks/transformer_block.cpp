// transformer_block, forward and step: what its ops are called with, and in which order. Host only.
#include "tandem/blocks/transformer_block.h"

#include <algorithm>
#include <string>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/run.h"
#include "blocks/transformer_parts.h"
#include "ops/key_value_cache.h"
#include "tandem/ops/attention.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/rms_norm_gemm.h"

namespace tandem {
namespace transformer {
namespace {

/// A forward or a step. x and out are [B,T,d], of a step with T = 1.
struct ForwardCall {
  const char* name;
  const TransformerBlock& block;
  TensorView x, out;
  std::optional<TensorView> cu_seqlens = {};
  std::optional<KeyValueCache> cache = {};
  bool steps = false;
  std::optional<SavedMemory> saved = {};
};

void check_cache(const ForwardCall& call, const Sizes& n) {
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call.name, name, view};
  };
  const Argument k = is("cache.k", call.cache->k), v = is("cache.v", call.cache->v),
                 lengths = is("cache.lengths", call.cache->lengths);
  if (call.cu_seqlens) refuse(call.name, "cu_seqlens must not be given beside cache");
  check_positive(call.name, "T", n.T);
  check_rank(k, "[B,capacity,HKV,K]", 4);
  const std::int64_t capacity = call.cache->k.shape[1];
  if (n.T > capacity) {
    refuse(call.name, "cache must have room for T = " + std::to_string(n.T) + " tokens, got " +
                          std::to_string(capacity));
  }
  for (const Argument& tensor : {k, v, lengths}) {
    const bool counts = &tensor.view == &call.cache->lengths;
    if (counts) {
      check_shape(tensor, "[B]", {n.B});
    } else {
      check_shape(tensor, "[B,capacity,HKV,K]", {n.B, capacity, n.HKV, n.K});
    }
    check_dtype(tensor, counts ? DType::kInt32 : call.x.dtype);
    check_device(tensor, call.x.device);
    check_data(tensor);
    check_alignment(tensor);
    check_contiguous(tensor);
  }
  check_disjoint(k, v);
  for (const Argument& tensor : {k, v, lengths}) {
    check_disjoint(tensor, is("x", call.x));
    check_disjoint(tensor, is("out", call.out));
  }
  check_disjoint(lengths, k);
  check_disjoint(lengths, v);
}

/// Checks a forward's tensors that no op sees, or not together; returns where it saves, if it does.
std::optional<TensorView> check_forward(const ForwardCall& call, const Sizes& n) {
  const Argument out = {call.name, "out", call.out};
  check_tokens(out, "[B,T,d]", 3);
  check_shape(out, "x's", call.x.shape);
  if (call.cache) check_cache(call, n);
  if (!call.saved) return std::nullopt;
  const TensorView saved =
      checked_saved(call.name, *call.saved, saved_bytes(n, call.block, call.x), call.x.device);
  Arguments inputs(call.name), outputs(call.name);
  inputs.add("x", call.x);
  add_block(inputs, call.block);
  inputs.add("cu_seqlens", call.cu_seqlens);
  outputs.add("out", call.out);
  if (call.cache) {
    outputs.add("cache.k", call.cache->k);
    outputs.add("cache.v", call.cache->v);
    outputs.add("cache.lengths", call.cache->lengths);
  }
  outputs.add("saved", saved);
  check_apart(outputs.all(), inputs.all());
  return saved;
}

/// The forward's ops in their order, on tensors of the caller and in a workspace at `data`.
struct Forward {
  RmsNormGemmForwardArgs heads;
  std::optional<AppendProblem> append;
  AttentionForwardArgs attention;
  GatedOutputForwardArgs attention_output;
  GemmSwigluForwardArgs mlp;
  GatedOutputForwardArgs mlp_output;
  std::size_t bytes = 0;  // of the tensors between them

  Forward(const ForwardCall& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

Forward::Forward(const ForwardCall& call, char* data) {
  const TransformerBlock& block = call.block;
  const Sizes n = sizes_of(call.name, block, call.x);
  const std::optional<TensorView> saved = check_forward(call, n);
  const DType dtype = call.x.dtype;
  Buffers buffers(data, call.x.device);
  Buffers in_saved(saved ? static_cast<char*>(saved->data) : nullptr, call.x.device);
  const Kept kept(saved ? in_saved : buffers, n, block, dtype, saved.has_value());
  bytes = buffers.bytes();

  const TensorView x = as_rows(call.x);
  const auto head_eps = [&](const std::optional<TensorView>& norm) {
    return norm ? std::optional(block.eps) : std::nullopt;
  };
  heads = {.x = x,
           .norm_weight = block.input_layernorm,
           .eps = block.eps,
           .rope_cos = block.rope_cos,
           .rope_sin = block.rope_sin,
           .segments = {{.weight = block.q_proj,
                         .bias = block.q_bias,
                         .head_width = n.K,
                         .head_norm_weight = block.q_norm,
                         .head_eps = head_eps(block.q_norm),
                         .rotates = true,
                         .out = as_rows(kept.q),
                         .pre_norm = kept.q_pre_norm,
                         .head_rstd = kept.q_rstd},
                        {.weight = block.k_proj,
                         .bias = block.k_bias,
                         .head_width = n.K,
                         .head_norm_weight = block.k_norm,
                         .head_eps = head_eps(block.k_norm),
                         .rotates = true,
                         .out = as_rows(kept.k),
                         .pre_norm = kept.k_pre_norm,
                         .head_rstd = kept.k_rstd},
                        {.weight = block.v_proj, .bias = block.v_bias, .out = as_rows(kept.v)}},
           .kept_rstd = kept.input_rstd};
  attention = {.q = kept.q, .k = kept.k, .v = kept.v, .o = kept.o, .log_sum_exp = kept.log_sum_exp};
  set_mask(attention, block, call.cu_seqlens);
  if (call.cache) {
    append = {.device = call.x.device,
              .B = n.B,
              .T = n.T,
              .capacity = call.cache->k.shape[1],
              .row_bytes = n.HKV * n.K * size_of(dtype),
              .k = kept.k.data,
              .v = kept.v.data,
              .cache_k = call.cache->k.data,
              .cache_v = call.cache->v.data,
              .lengths = static_cast<std::int32_t*>(call.cache->lengths.data),
              .steps = call.steps};
  }
  if (call.steps) {
    heads.rope_positions = call.cache->lengths;
    attention.k = call.cache->k;
    attention.v = call.cache->v;
    attention.lengths_k = call.cache->lengths;
  } else {
    set_positions(heads, n, call.cu_seqlens);
  }
  attention_output = {.o = as_rows(kept.o),
                      .weight = block.o_proj,
                      .bias = block.o_bias,
                      .residual = x,
                      .out = kept.h};
  mlp = {.x = kept.h,
         .gate_weight = block.gate_proj,
         .up_weight = block.up_proj,
         .activation = block.activation,
         .norm_weight = block.post_attention_layernorm,
         .eps = block.eps,
         .out = kept.gated,
         .gate_slope = kept.gate_slope,
         .up_slope = kept.up_slope,
         .kept_rstd = kept.post_attention_rstd};
  mlp_output = {
      .o = kept.gated, .weight = block.down_proj, .residual = kept.h, .out = as_rows(call.out)};
}

/// What the ops need in turn. This checks each of them.
std::size_t Forward::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  return std::max({rms_norm_gemm_forward_workspace_bytes(heads, device, batch_invariant),
                   attention_forward_workspace_bytes(attention, device, batch_invariant),
                   gated_output_forward_workspace_bytes(attention_output, device, batch_invariant),
                   gemm_swiglu_forward_workspace_bytes(mlp, device, batch_invariant),
                   gated_output_forward_workspace_bytes(mlp_output, device, batch_invariant)});
}

void Forward::run(const Context& context) const {
  rms_norm_gemm_forward(heads, context);
  if (append) {
    run_pass(*append, context, cpu::append_to_cache, TANDEM_CUDA_ENTRY(append_to_cache));
  }
  attention_forward(attention, context);
  gated_output_forward(attention_output, context);
  gemm_swiglu_forward(mlp, context);
  gated_output_forward(mlp_output, context);
}

ForwardCall call_of(const TransformerBlockForwardArgs& args) {
  return {.name = "transformer_block_forward",
          .block = args.block,
          .x = args.x,
          .out = args.out,
          .cu_seqlens = args.cu_seqlens,
          .cache = args.cache,
          .saved = args.saved};
}

ForwardCall call_of(const TransformerBlockStepArgs& args) {
  constexpr const char* kName = "transformer_block_step";
  return {.name = kName,
          .block = args.block,
          .x = checked_token({kName, "x", args.x}),
          .out = checked_token({kName, "out", args.out}),
          .cache = args.cache,
          .steps = true};
}

}  // namespace
}  // namespace transformer

void transformer_block_forward(const TransformerBlockForwardArgs& args, const Context& context) {
  run_block<transformer::Forward>(transformer::call_of(args), context);
}

std::size_t transformer_block_forward_workspace_bytes(const TransformerBlockForwardArgs& args,
                                                      const DeviceProperties& device,
                                                      bool batch_invariant) {
  return block_bytes<transformer::Forward>(transformer::call_of(args), device, batch_invariant);
}

std::size_t transformer_block_saved_bytes(const TransformerBlockForwardArgs& args) {
  return transformer::saved_bytes(
      transformer::sizes_of("transformer_block_forward", args.block, args.x), args.block, args.x);
}

void transformer_block_step(const TransformerBlockStepArgs& args, const Context& context) {
  run_block<transformer::Forward>(transformer::call_of(args), context);
}

std::size_t transformer_block_step_workspace_bytes(const TransformerBlockStepArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant) {
  return block_bytes<transformer::Forward>(transformer::call_of(args), device, batch_invariant);
}

}  // namespace tandem
