// What transformer_block's forward and backward have in common: the layer's sizes, its parameters,
// what lies between its ops, and which tokens see which.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "blocks/buffers.h"
#include "blocks/check.h"
#include "tandem/blocks/transformer_block.h"

namespace tandem::transformer {

/// Calls visit(name, member of the block, name of its gradient, member of the gradients) for each
/// parameter.
template <class Visit>
void for_each_parameter(const Visit& visit) {
#define TANDEM_PARAMETER(name) \
  visit(#name, &TransformerBlock::name, "gradients." #name, &TransformerBlockGradients::name)
  TANDEM_PARAMETER(input_layernorm);
  TANDEM_PARAMETER(q_proj);
  TANDEM_PARAMETER(k_proj);
  TANDEM_PARAMETER(v_proj);
  TANDEM_PARAMETER(q_bias);
  TANDEM_PARAMETER(k_bias);
  TANDEM_PARAMETER(v_bias);
  TANDEM_PARAMETER(q_norm);
  TANDEM_PARAMETER(k_norm);
  TANDEM_PARAMETER(o_proj);
  TANDEM_PARAMETER(o_bias);
  TANDEM_PARAMETER(post_attention_layernorm);
  TANDEM_PARAMETER(gate_proj);
  TANDEM_PARAMETER(up_proj);
  TANDEM_PARAMETER(down_proj);
#undef TANDEM_PARAMETER
}

inline void add_block(Arguments& to, const TransformerBlock& block) {
  for_each_parameter(
      [&](const char* name, auto weight, const char*, auto) { to.add(name, block.*weight); });
  to.add("rope_cos", block.rope_cos);
  to.add("rope_sin", block.rope_sin);
}

struct Sizes {
  std::int64_t B, T, d, H, HKV, K, F;

  std::int64_t rows() const { return B * T; }
};

inline void check_positive(const char* call, const char* name, std::int64_t value) {
  if (value >= 1) return;
  refuse(call, std::string(name) + " must be positive, got " + std::to_string(value));
}

/// Checks what must hold before the ops can be called with parts of these tensors; they check the
/// rest. x is [B,T,d].
inline Sizes sizes_of(const char* call, const TransformerBlock& block, const TensorView& x) {
  check_tokens({call, "x", x}, "[B,T,d]", 3);
  check_rank({call, "q_proj", block.q_proj}, "[H*K,d]", 2);
  check_rank({call, "gate_proj", block.gate_proj}, "[F,d]", 2);
  check_positive(call, "heads", block.heads);
  check_positive(call, "key_value_heads", block.key_value_heads);
  if (block.q_proj.shape[0] % block.heads != 0) {
    refuse(call, "heads must divide q_proj's " + std::to_string(block.q_proj.shape[0]) +
                     " rows, got " + std::to_string(block.heads));
  }
  if (block.window) check_positive(call, "window", *block.window);
  return {.B = x.shape[0],
          .T = x.shape[1],
          .d = x.shape[2],
          .H = block.heads,
          .HKV = block.key_value_heads,
          .K = block.q_proj.shape[0] / block.heads,
          .F = block.gate_proj.shape[0]};
}

/// What lies between the ops and a backward reads again.
struct Kept {
  TensorView q, k, v, o, h, gated;
  // Of a forward that is differentiated, in the ops' words: of the norms, of those of heads, of
  // attention, of the MLP.
  std::optional<TensorView> input_rstd, post_attention_rstd;
  std::optional<TensorView> q_pre_norm, q_rstd, k_pre_norm, k_rstd;
  std::optional<TensorView> log_sum_exp, gate_slope, up_slope;

  Kept(Buffers& buffers, const Sizes& n, const TransformerBlock& block, DType dtype,
       bool differentiated) {
    const DType real = real_dtype(dtype);
    q = buffers.take(dtype, {n.B, n.T, n.H, n.K});
    k = buffers.take(dtype, {n.B, n.T, n.HKV, n.K});
    v = buffers.take(dtype, k.shape);
    o = buffers.take(dtype, q.shape);
    h = buffers.take(dtype, {n.rows(), n.d});
    gated = buffers.take(dtype, {n.rows(), n.F});
    if (!differentiated) return;
    input_rstd = buffers.take(real, {n.rows()});
    post_attention_rstd = buffers.take(real, {n.rows()});
    if (block.q_norm) {
      q_pre_norm = buffers.take(dtype, {n.rows(), n.H * n.K});
      q_rstd = buffers.take(real, {n.rows(), n.H});
    }
    if (block.k_norm) {
      k_pre_norm = buffers.take(dtype, {n.rows(), n.HKV * n.K});
      k_rstd = buffers.take(real, {n.rows(), n.HKV});
    }
    log_sum_exp = buffers.take(real, {n.B, n.H, n.T});
    gate_slope = buffers.take(dtype, gated.shape);
    up_slope = buffers.take(dtype, gated.shape);
  }
};

inline std::size_t saved_bytes(const Sizes& n, const TransformerBlock& block, const TensorView& x) {
  Buffers buffers(nowhere(), x.device);
  const Kept kept(buffers, n, block, x.dtype, true);
  return buffers.bytes();
}

/// Sets where the tokens of a whole sequence stand, of either direction of rms_norm_gemm.
template <class Args>
void set_positions(Args& args, const Sizes& n, const std::optional<TensorView>& cu_seqlens) {
  args.cu_seqlens = cu_seqlens;
  if (!cu_seqlens) args.rope_length = std::max<std::int64_t>(n.T, 1);
}

/// Sets which tokens see which, of either direction of attention.
template <class Args>
void set_mask(Args& args, const TransformerBlock& block,
              const std::optional<TensorView>& cu_seqlens) {
  args.causal = true;
  if (block.window) args.window_left = *block.window - 1;
  args.cu_seqlens_q = args.cu_seqlens_k = cu_seqlens;
}

}  // namespace tandem::transformer
