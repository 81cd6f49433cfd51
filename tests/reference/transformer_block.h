// The fp64 definition of transformer_block: a token after the other, as plain as the formula.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/block_rows.h"
#include "reference/element.h"
#include "reference/heads.h"
#include "tandem/blocks/transformer_block.h"

namespace tandem::reference {

inline double activated(GateActivation activation, double z) {
  switch (activation) {
    case GateActivation::kSilu: return z / (1 + std::exp(-z));
    case GateActivation::kGelu: return z / 2 * (1 + std::erf(z / std::sqrt(2.0)));
    case GateActivation::kGeluTanh:
      return z / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)));
    case GateActivation::kRelu: return std::max(z, 0.0);
  }
  return 0;
}

/// Norms and rotates the heads of a token at `position`.
inline Row heads(const TransformerBlock& block, Row z, const std::optional<TensorView>& weight,
                 std::int64_t K, std::int64_t position) {
  const Row cos = read_row(block.rope_cos, position, 0, block.rope_cos.shape[1]);
  const Row sin = read_row(block.rope_sin, position, 0, block.rope_sin.shape[1]);
  Row out;
  for (auto begin = z.begin(); begin != z.end(); begin += K) {
    Row head(begin, begin + K);
    if (weight) head = norm(*weight, block.eps, head);
    head = rotate_head(head, cos, sin, RopeLayout::kRotateHalf);
    out.insert(out.end(), head.begin(), head.end());
  }
  return out;
}

/// out [B,T,d] of x [B,T,d], on the host; `offsets` are where packed sequences begin, and the end
/// of the last.
inline Row transformer_block(const TransformerBlock& block, const TensorView& x,
                             std::vector<std::int64_t> offsets = {}) {
  const std::int64_t B = x.shape[0], T = x.shape[1], d = x.shape[2], H = block.heads;
  const std::int64_t K = block.q_proj.shape[0] / H, group = H / block.key_value_heads;
  if (offsets.empty()) {
    for (std::int64_t b = 0; b <= B; ++b) offsets.push_back(b * T);
  }
  const TensorView rows = TensorView::contiguous(x.data, x.dtype, {B * T, d});
  Row out;
  for (std::size_t sequence = 0; sequence + 1 < offsets.size(); ++sequence) {
    const std::int64_t begin = offsets[sequence], length = offsets[sequence + 1] - begin;
    std::vector<Row> k, v;
    for (std::int64_t t = 0; t < length; ++t) {
      Row h = read_row(rows, begin + t, 0, d);
      const Row n = norm(block.input_layernorm, block.eps, h);
      const Row q = heads(block, product(block.q_proj, block.q_bias, n), block.q_norm, K, t);
      k.push_back(heads(block, product(block.k_proj, block.k_bias, n), block.k_norm, K, t));
      v.push_back(product(block.v_proj, block.v_bias, n));
      Row o(H * K, 0.0);
      const std::int64_t first =
          block.window ? std::max<std::int64_t>(0, t + 1 - *block.window) : 0;
      for (std::int64_t head = 0; head < H; ++head) {
        const std::int64_t shared = head / group * K;
        Row p;
        for (std::int64_t j = first; j <= t; ++j) {
          double s = 0;
          for (std::int64_t c = 0; c < K; ++c) s += q[head * K + c] * k[j][shared + c];
          p.push_back(std::exp(s / std::sqrt(static_cast<double>(K))));
        }
        double sum = 0;
        for (const double weight : p) sum += weight;
        for (std::int64_t j = first; j <= t; ++j) {
          for (std::int64_t c = 0; c < K; ++c) {
            o[head * K + c] += p[j - first] / sum * v[j][shared + c];
          }
        }
      }
      const Row mixed = product(block.o_proj, block.o_bias, o);
      for (std::int64_t i = 0; i < d; ++i) h[i] += mixed[i];
      const Row m = norm(block.post_attention_layernorm, block.eps, h);
      Row gated = product(block.gate_proj, std::nullopt, m);
      const Row up = product(block.up_proj, std::nullopt, m);
      for (std::size_t i = 0; i < up.size(); ++i) {
        gated[i] = activated(block.activation, gated[i]) * up[i];
      }
      const Row down = product(block.down_proj, std::nullopt, gated);
      for (std::int64_t i = 0; i < d; ++i) out.push_back(h[i] + down[i]);
    }
  }
  return out;
}

}  // namespace tandem::reference
