// transformer_block, backward: what its ops are called with, and in which order. Host only.
#include <algorithm>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "blocks/run.h"
#include "blocks/transformer_parts.h"
#include "tandem/ops/attention.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/gemm_swiglu.h"
#include "tandem/ops/rms_norm_gemm.h"

namespace tandem {
namespace transformer {
namespace {

struct BackwardCall {
  const char* name;
  const TransformerBlockBackwardArgs& args;
  TensorView x;
};

/// The backward's ops in their order, as in Forward.
struct Backward {
  GatedOutputBackwardArgs mlp_output;
  GemmSwigluBackwardArgs mlp;
  GatedOutputBackwardArgs attention_output;
  AttentionBackwardArgs attention;
  RmsNormGemmBackwardArgs heads;
  std::size_t bytes = 0;

  Backward(const BackwardCall& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

/// Checks a backward's tensors that no op sees, or not together; returns what the forward saved.
TensorView check_backward(const BackwardCall& call, const Sizes& n) {
  const TransformerBlockBackwardArgs& args = call.args;
  const TensorView saved =
      checked_saved(call.name, args.saved, saved_bytes(n, args.block, args.x), args.x.device);
  check_token_gradients(call.name, args.x, args.d_out, args.dx);
  Arguments inputs(call.name), outputs(call.name);
  inputs.add("x", args.x);
  add_block(inputs, args.block);
  inputs.add("cu_seqlens", args.cu_seqlens);
  inputs.add("saved", saved);
  inputs.add("d_out", args.d_out);
  outputs.add("dx", args.dx);
  for_each_parameter([&](const char*, auto, const char* name, auto gradient) {
    outputs.add(name, args.gradients.*gradient);
  });
  check_apart(outputs.all(), inputs.all());
  return saved;
}

Backward::Backward(const BackwardCall& call, char* data) {
  const TransformerBlockBackwardArgs& args = call.args;
  const TransformerBlock& block = args.block;
  const TransformerBlockGradients& gradients = args.gradients;
  const Sizes n = sizes_of(call.name, block, args.x);
  const TensorView saved = check_backward(call, n);
  Buffers in_saved(static_cast<char*>(saved.data), args.x.device);
  const Kept kept(in_saved, n, block, args.x.dtype, true);
  Buffers buffers(data, args.x.device);
  const auto like = [&](const TensorView& view) { return buffers.take(view.dtype, view.shape); };
  const TensorView d_gated = like(kept.gated), d_h = like(kept.h), d_o = like(kept.o);
  const TensorView dq = like(kept.q), dk = like(kept.k), dv = like(kept.v);
  bytes = buffers.bytes();

  const TensorView d_out = as_rows(args.d_out);
  mlp_output = {.o = kept.gated,
                .weight = block.down_proj,
                .d_out = d_out,
                .d_o = d_gated,
                .d_weight = gradients.down_proj,
                .accumulate = args.accumulate};
  mlp = {.x = kept.h,
         .gate_weight = block.gate_proj,
         .up_weight = block.up_proj,
         .norm_weight = block.post_attention_layernorm,
         .rstd = kept.post_attention_rstd,
         .gate_slope = *kept.gate_slope,
         .up_slope = *kept.up_slope,
         .d_out = d_gated,
         .dx = d_h,
         .d_gate_weight = gradients.gate_proj,
         .d_up_weight = gradients.up_proj,
         .d_norm_weight = gradients.post_attention_layernorm,
         .addend = d_out,
         .accumulate = args.accumulate};
  attention_output = {.o = as_rows(kept.o),
                      .weight = block.o_proj,
                      .bias = block.o_bias,
                      .d_out = d_h,
                      .d_o = as_rows(d_o),
                      .d_weight = gradients.o_proj,
                      .d_bias = gradients.o_bias,
                      .accumulate = args.accumulate};
  attention = {.q = kept.q,
               .k = kept.k,
               .v = kept.v,
               .o = kept.o,
               .log_sum_exp = *kept.log_sum_exp,
               .d_o = d_o,
               .dq = dq,
               .dk = dk,
               .dv = dv};
  set_mask(attention, block, args.cu_seqlens);
  heads = {.x = as_rows(args.x),
           .norm_weight = block.input_layernorm,
           .rstd = *kept.input_rstd,
           .rope_cos = block.rope_cos,
           .rope_sin = block.rope_sin,
           .segments = {{.weight = block.q_proj,
                         .bias = block.q_bias,
                         .head_width = n.K,
                         .head_norm_weight = block.q_norm,
                         .rotates = true,
                         .pre_norm = kept.q_pre_norm,
                         .head_rstd = kept.q_rstd,
                         .d_out = as_rows(dq),
                         .d_weight = gradients.q_proj,
                         .d_bias = gradients.q_bias,
                         .d_head_norm_weight = gradients.q_norm},
                        {.weight = block.k_proj,
                         .bias = block.k_bias,
                         .head_width = n.K,
                         .head_norm_weight = block.k_norm,
                         .rotates = true,
                         .pre_norm = kept.k_pre_norm,
                         .head_rstd = kept.k_rstd,
                         .d_out = as_rows(dk),
                         .d_weight = gradients.k_proj,
                         .d_bias = gradients.k_bias,
                         .d_head_norm_weight = gradients.k_norm},
                        {.weight = block.v_proj,
                         .bias = block.v_bias,
                         .d_out = as_rows(dv),
                         .d_weight = gradients.v_proj,
                         .d_bias = gradients.v_bias}},
           .d_norm_weight = gradients.input_layernorm,
           .addend = d_h,
           .accumulate = args.accumulate};
  set_positions(heads, n, args.cu_seqlens);
  if (args.dx) heads.dx = as_rows(*args.dx);
}

std::size_t Backward::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  return std::max({gated_output_backward_workspace_bytes(mlp_output, device, batch_invariant),
                   gemm_swiglu_backward_workspace_bytes(mlp, device, batch_invariant),
                   gated_output_backward_workspace_bytes(attention_output, device, batch_invariant),
                   attention_backward_workspace_bytes(attention, device, batch_invariant),
                   rms_norm_gemm_backward_workspace_bytes(heads, device, batch_invariant)});
}

void Backward::run(const Context& context) const {
  gated_output_backward(mlp_output, context);
  gemm_swiglu_backward(mlp, context);
  gated_output_backward(attention_output, context);
  attention_backward(attention, context);
  rms_norm_gemm_backward(heads, context);
}

BackwardCall call_of(const TransformerBlockBackwardArgs& args) {
  return {"transformer_block_backward", args, args.x};
}

}  // namespace
}  // namespace transformer

void transformer_block_backward(const TransformerBlockBackwardArgs& args, const Context& context) {
  run_block<transformer::Backward>(transformer::call_of(args), context);
}

std::size_t transformer_block_backward_workspace_bytes(const TransformerBlockBackwardArgs& args,
                                                       const DeviceProperties& device,
                                                       bool batch_invariant) {
  return block_bytes<transformer::Backward>(transformer::call_of(args), device, batch_invariant);
}

}  // namespace tandem
