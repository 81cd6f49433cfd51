// The fp64 definition of gla_block: a token after the other, as plain as the formula.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/block_rows.h"
#include "tandem/blocks/gla_block.h"

namespace tandem::reference {

struct GlaBlockResult {
  Row out;          // [B,T,d]
  Row final_state;  // [N,H,K,V]
};

inline double activated(Activation activation, double z) {
  if (activation == Activation::kSilu) return z / (1 + std::exp(-z));
  return activation == Activation::kSigmoid ? 1 / (1 + std::exp(-z)) : z;
}

inline Row activated(Activation activation, Row z) {
  for (double& one : z) one = activated(activation, one);
  return z;
}

/// Of x [B,T,d] on the host; `offsets` are where packed sequences begin, and the end of the last.
inline GlaBlockResult gla_block(const GlaBlock& block, const TensorView& x,
                                const std::optional<TensorView>& initial_state = std::nullopt,
                                std::vector<std::int64_t> offsets = {}) {
  const std::int64_t B = x.shape[0], T = x.shape[1], d = x.shape[2], H = block.heads;
  const std::int64_t K = block.q_proj.shape[0] / H, V = block.v_proj.shape[0] / H;
  if (offsets.empty()) {
    for (std::int64_t b = 0; b <= B; ++b) offsets.push_back(b * T);
  }
  const TensorView rows = TensorView::contiguous(x.data, x.dtype, {B * T, d});
  const Row head_weight = read_vector(block.g_norm_swish_gate);
  GlaBlockResult result;
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    Row state(H * K * V, 0.0);
    for (std::size_t i = 0; initial_state && i < state.size(); ++i) {
      state[i] = element(initial_state->dtype, initial_state->data,
                         static_cast<std::int64_t>(n * state.size() + i));
    }
    for (std::int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
      const Row x_t = read_row(rows, t, 0, d), normed = norm(block.attn_norm, block.eps, x_t);
      const Row q = activated(block.feature_map, product(block.q_proj, std::nullopt, normed));
      const Row k = activated(block.feature_map, product(block.k_proj, std::nullopt, normed));
      const Row v = product(block.v_proj, std::nullopt, normed);
      const Row gate = product(block.g_proj, std::nullopt, normed);
      const Row z = product(block.gk_proj, block.gk_bias, normed);
      Row a;
      for (std::int64_t h = 0; h < H; ++h) {
        const double log_decay = -std::log1p(std::exp(-z[h])) / block.gate_logit_normalizer;
        Row o(V, 0.0);
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) {
            double& s = state[(h * K + i) * V + j];
            s = std::exp(log_decay) * s + k[h * K + i] * v[h * V + j];
            o[j] += q[h * K + i] * s / std::sqrt(static_cast<double>(K));
          }
        }
        o = rms_norm_row(o, rms_norm_rstd(o, block.head_eps), head_weight);
        for (std::int64_t j = 0; j < V; ++j)
          a.push_back(o[j] * activated(Activation::kSilu, gate[h * V + j]));
      }
      const Row mixed = product(block.o_proj, std::nullopt, a);
      for (std::int64_t i = 0; i < d; ++i) result.out.push_back(x_t[i] + mixed[i]);
    }
    result.final_state.insert(result.final_state.end(), state.begin(), state.end());
  }
  return result;
}

}  // namespace tandem::reference
