// A transformer_block with random parameters on the host, for its tests.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/real.h"
#include "cpp/random_tensors.h"
#include "tandem/blocks/transformer_block.h"

namespace tandem::tools {

struct BlockSizes {
  std::int64_t d = 64, H = 4, HKV = 2, K = 16, F = 96, positions = 64;
  bool biases = false, norms = false;  // Qwen2's, Qwen3's
};

class RandomTransformerBlock : public RandomTensors {
 public:
  RandomTransformerBlock(DType dtype, const BlockSizes& sizes, unsigned seed)
      : RandomTensors(dtype, seed), sizes_(sizes) {
    const auto& [d, H, HKV, K, F, positions, biases, norms] = sizes;
    block.heads = H;
    block.key_value_heads = HKV;
    block.input_layernorm = normal({d}, 1, 0.1);
    block.q_proj = matrix(H * K, d);
    block.k_proj = matrix(HKV * K, d);
    block.v_proj = matrix(HKV * K, d);
    if (biases) {
      block.q_bias = normal({H * K}, 0, 0.3);
      block.k_bias = normal({HKV * K}, 0, 0.3);
      block.v_bias = normal({HKV * K}, 0, 0.3);
      block.o_bias = normal({d}, 0, 0.3);
    }
    if (norms) {
      block.q_norm = normal({K}, 1, 0.1);
      block.k_norm = normal({K}, 1, 0.1);
    }
    block.rope_cos = zeros(real_dtype(dtype), {positions, K / 2});
    block.rope_sin = zeros(real_dtype(dtype), {positions, K / 2});
    for (std::int64_t i = 0; i < positions * K / 2; ++i) {
      const double angle = static_cast<double>(i / (K / 2)) *
                           std::pow(10000, -2.0 * static_cast<double>(i % (K / 2)) / K);
      set_value(block.rope_cos, i, std::cos(angle));
      set_value(block.rope_sin, i, std::sin(angle));
    }
    block.o_proj = matrix(d, H * K);
    block.post_attention_layernorm = normal({d}, 1, 0.1);
    block.gate_proj = matrix(F, d);
    block.up_proj = matrix(F, d);
    block.down_proj = matrix(d, F);
  }

  KeyValueCache cache(std::int64_t B, std::int64_t capacity) {
    const Dims shape = {B, capacity, sizes_.HKV, sizes_.K};
    return {zeros(shape), zeros(shape), zeros(DType::kInt32, {B})};
  }

  TransformerBlock block;

 private:
  BlockSizes sizes_;
};

}  // namespace tandem::tools
