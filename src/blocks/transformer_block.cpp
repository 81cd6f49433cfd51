// transformer_block: what its ops are called with, and in which order. Host only.
#include "tandem/blocks/transformer_block.h"

#include <algorithm>
#include <string>

#include "blocks/buffers.h"
#include "blocks/run.h"
#include "core/check.h"
#include "ops/key_value_cache.h"
#include "tandem/ops/attention.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/rms_norm_gemm.h"

namespace tandem {
namespace {

/// Either call of the block. Its x and out are [B,T,d], of a step with T = 1.
struct Call {
  const char* name;
  const TransformerBlock& block;
  TensorView x, out;
  std::optional<KeyValueCache> cache;
  bool steps;
};

struct Sizes {
  std::int64_t B, T, d, H, HKV, K, F;

  std::int64_t rows() const { return B * T; }
};

/// Checks what must hold before the ops can be called with parts of these tensors; they check the
/// rest.
Sizes sizes_of(const Call& call) {
  const TransformerBlock& block = call.block;
  const auto is = [&](const char* name, const TensorView& view) {
    return Argument{call.name, name, view};
  };
  const auto count = [&](const char* name, std::int64_t value) {
    if (value < 1) {
      refuse(call.name, std::string(name) + " must be positive, got " + std::to_string(value));
    }
  };
  for (const Argument& tensor : {is("x", call.x), is("out", call.out)}) {
    check_rank(tensor, call.steps ? "[B,d]" : "[B,T,d]", 3);
    check_data(tensor);
    check_contiguous(tensor);
  }
  check_rank(is("q_proj", block.q_proj), "[H*K,d]", 2);
  check_rank(is("gate_proj", block.gate_proj), "[F,d]", 2);
  count("heads", block.heads);
  count("key_value_heads", block.key_value_heads);
  if (block.q_proj.shape[0] % block.heads != 0) {
    refuse(call.name, "heads must divide q_proj's " + std::to_string(block.q_proj.shape[0]) +
                          " rows, got " + std::to_string(block.heads));
  }
  const Sizes n = {.B = call.x.shape[0],
                   .T = call.x.shape[1],
                   .d = call.x.shape[2],
                   .H = block.heads,
                   .HKV = block.key_value_heads,
                   .K = block.q_proj.shape[0] / block.heads,
                   .F = block.gate_proj.shape[0]};
  count("T", n.T);
  if (block.window) count("window", *block.window);
  check_shape(is("out", call.out), "x's", call.x.shape);
  if (!call.cache) return n;
  const Argument k = is("cache.k", call.cache->k), v = is("cache.v", call.cache->v),
                 lengths = is("cache.lengths", call.cache->lengths);
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
  return n;
}

/// The block's ops in their order, on tensors of the caller and in a workspace at `data`.
struct Sequence {
  RmsNormGemmForwardArgs heads;
  std::optional<AppendProblem> append;
  AttentionForwardArgs attention;
  GatedOutputForwardArgs attention_output;
  GemmSwigluForwardArgs mlp;
  GatedOutputForwardArgs mlp_output;
  std::size_t bytes = 0;  // of the tensors between them

  Sequence(const Call& call, char* data);
  std::size_t op_bytes(const DeviceProperties& device, bool batch_invariant) const;
  void run(const Context& context) const;
};

Sequence::Sequence(const Call& call, char* data) {
  const TransformerBlock& block = call.block;
  const Sizes n = sizes_of(call);
  const DType dtype = call.x.dtype;
  Buffers buffers(data, call.x.device);
  const TensorView q = buffers.take(dtype, {n.B, n.T, n.H, n.K});
  const TensorView k = buffers.take(dtype, {n.B, n.T, n.HKV, n.K});
  const TensorView v = buffers.take(dtype, {n.B, n.T, n.HKV, n.K});
  const TensorView o = buffers.take(dtype, {n.B, n.T, n.H, n.K});
  const TensorView h = buffers.take(dtype, {n.rows(), n.d});
  const TensorView gated = buffers.take(dtype, {n.rows(), n.F});
  bytes = buffers.bytes();

  const TensorView x = reshaped(call.x, {n.rows(), n.d}), out = reshaped(call.out, x.shape);
  const auto segment = [&](const TensorView& weight, const std::optional<TensorView>& bias,
                           const std::optional<TensorView>& norm, bool rotates,
                           const TensorView& to) {
    RmsNormGemmSegment made;
    made.weight = weight;
    made.bias = bias;
    if (norm || rotates) made.head_width = n.K;
    made.head_norm_weight = norm;
    if (norm) made.head_eps = block.eps;
    made.rotates = rotates;
    made.out = reshaped(to, {n.rows(), to.shape[2] * n.K});
    return made;
  };
  heads = {.x = x,
           .norm_weight = block.input_layernorm,
           .eps = block.eps,
           .rope_cos = block.rope_cos,
           .rope_sin = block.rope_sin,
           .segments = {segment(block.q_proj, block.q_bias, block.q_norm, true, q),
                        segment(block.k_proj, block.k_bias, block.k_norm, true, k),
                        segment(block.v_proj, block.v_bias, std::nullopt, false, v)}};
  attention = {.q = q, .k = k, .v = v, .causal = true, .o = o};
  if (block.window) attention.window_left = *block.window - 1;
  if (call.cache) {
    append = {.device = call.x.device,
              .B = n.B,
              .T = n.T,
              .capacity = call.cache->k.shape[1],
              .row_bytes = n.HKV * n.K * size_of(dtype),
              .k = k.data,
              .v = v.data,
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
    heads.rope_length = n.T;
  }
  attention_output = {.o = reshaped(o, {n.rows(), n.H * n.K}),
                      .weight = block.o_proj,
                      .bias = block.o_bias,
                      .residual = x,
                      .out = h};
  mlp = {.x = h,
         .gate_weight = block.gate_proj,
         .up_weight = block.up_proj,
         .activation = block.activation,
         .norm_weight = block.post_attention_layernorm,
         .eps = block.eps,
         .out = gated};
  mlp_output = {.o = gated, .weight = block.down_proj, .residual = h, .out = out};
}

/// What the ops need in turn. This checks each of them.
std::size_t Sequence::op_bytes(const DeviceProperties& device, bool batch_invariant) const {
  return std::max({rms_norm_gemm_forward_workspace_bytes(heads, device, batch_invariant),
                   attention_forward_workspace_bytes(attention, device, batch_invariant),
                   gated_output_forward_workspace_bytes(attention_output, device, batch_invariant),
                   gemm_swiglu_forward_workspace_bytes(mlp, device, batch_invariant),
                   gated_output_forward_workspace_bytes(mlp_output, device, batch_invariant)});
}

void Sequence::run(const Context& context) const {
  rms_norm_gemm_forward(heads, context);
  if (append) {
    run_pass(*append, context, cpu::append_to_cache, TANDEM_CUDA_ENTRY(append_to_cache));
  }
  attention_forward(attention, context);
  gated_output_forward(attention_output, context);
  gemm_swiglu_forward(mlp, context);
  gated_output_forward(mlp_output, context);
}

Call call_of(const TransformerBlockForwardArgs& args) {
  return {"transformer_block_forward", args.block, args.x, args.out, args.cache, false};
}

Call call_of(const TransformerBlockStepArgs& args) {
  constexpr const char* kName = "transformer_block_step";
  const auto with_time = [](const char* name, const TensorView& view) {
    const Argument argument = {kName, name, view};
    check_rank(argument, "[B,d]", 2);
    check_data(argument);
    check_contiguous(argument);
    return reshaped(view, {view.shape[0], 1, view.shape[1]});
  };
  return {kName, args.block, with_time("x", args.x), with_time("out", args.out), args.cache, true};
}

}  // namespace

void transformer_block_forward(const TransformerBlockForwardArgs& args, const Context& context) {
  run_block<Sequence>(call_of(args), context);
}

std::size_t transformer_block_forward_workspace_bytes(const TransformerBlockForwardArgs& args,
                                                      const DeviceProperties& device,
                                                      bool batch_invariant) {
  return block_bytes<Sequence>(call_of(args), device, batch_invariant);
}

void transformer_block_step(const TransformerBlockStepArgs& args, const Context& context) {
  run_block<Sequence>(call_of(args), context);
}

std::size_t transformer_block_step_workspace_bytes(const TransformerBlockStepArgs& args,
                                                   const DeviceProperties& device,
                                                   bool batch_invariant) {
  return block_bytes<Sequence>(call_of(args), device, batch_invariant);
}

}  // namespace tandem
