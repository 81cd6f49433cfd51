// A transformer_block with random parameters on the host, for its tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/real.h"
#include "cpp/random_tensors.h"
#include "tandem/blocks/transformer_block.h"

namespace tandem::tools {

/// Calls visit(name, member of the block, member of its gradients) for each parameter.
template <class Visit>
void for_each_transformer_parameter(const Visit& visit) {
  using Block = TransformerBlock;
  using Gradients = TransformerBlockGradients;
  visit("input_layernorm", &Block::input_layernorm, &Gradients::input_layernorm);
  visit("q_proj", &Block::q_proj, &Gradients::q_proj);
  visit("k_proj", &Block::k_proj, &Gradients::k_proj);
  visit("v_proj", &Block::v_proj, &Gradients::v_proj);
  visit("q_bias", &Block::q_bias, &Gradients::q_bias);
  visit("k_bias", &Block::k_bias, &Gradients::k_bias);
  visit("v_bias", &Block::v_bias, &Gradients::v_bias);
  visit("q_norm", &Block::q_norm, &Gradients::q_norm);
  visit("k_norm", &Block::k_norm, &Gradients::k_norm);
  visit("o_proj", &Block::o_proj, &Gradients::o_proj);
  visit("o_bias", &Block::o_bias, &Gradients::o_bias);
  visit("post_attention_layernorm", &Block::post_attention_layernorm,
        &Gradients::post_attention_layernorm);
  visit("gate_proj", &Block::gate_proj, &Gradients::gate_proj);
  visit("up_proj", &Block::up_proj, &Gradients::up_proj);
  visit("down_proj", &Block::down_proj, &Gradients::down_proj);
}

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

/// A forward and a backward of a block, with all that they write.
struct TransformerBlockTraining {
  TransformerBlockForwardArgs forward;
  TransformerBlockBackwardArgs backward;
};

inline SavedMemory memory_to_save(RandomTensors& memory,
                                  const TransformerBlockForwardArgs& forward) {
  const std::size_t bytes = transformer_block_saved_bytes(forward);
  return {memory.aligned(bytes), bytes};
}

/// With random x and d_out [B,T,d].
inline TransformerBlockTraining make_training(
    RandomTransformerBlock& random, std::int64_t B, std::int64_t T,
    const std::optional<TensorView>& cu_seqlens = std::nullopt) {
  const Dims tokens = {B, T, random.block.input_layernorm.shape[0]};
  TransformerBlockTraining made;
  made.forward = {.block = random.block,
                  .x = random.normal(tokens, 0, 1),
                  .cu_seqlens = cu_seqlens,
                  .out = random.zeros(tokens)};
  made.backward = {.block = random.block,
                   .x = made.forward.x,
                   .cu_seqlens = cu_seqlens,
                   .saved = memory_to_save(random, made.forward),
                   .d_out = random.normal(tokens, 0, 1),
                   .dx = random.zeros(tokens)};
  made.forward.saved = made.backward.saved;
  for_each_transformer_parameter([&](const char*, auto weight, auto gradient) {
    const std::optional<TensorView> parameter = random.block.*weight;
    if (parameter) made.backward.gradients.*gradient = random.zeros(parameter->shape);
  });
  return made;
}

/// The same with every tensor of floating point replaced by `with(tensor)`.
template <class With>
TransformerBlock replaced(const TransformerBlock& from, const With& with) {
  TransformerBlock made = from;
  for_each_transformer_parameter([&](const char*, auto weight, auto) {
    const std::optional<TensorView> parameter = from.*weight;
    if (parameter) made.*weight = with(*parameter);
  });
  made.rope_cos = with(from.rope_cos);
  made.rope_sin = with(from.rope_sin);
  return made;
}

template <class With>
TransformerBlockTraining replaced(const TransformerBlockTraining& from, const With& with) {
  TransformerBlockTraining made = from;
  made.forward.block = made.backward.block = replaced(from.forward.block, with);
  made.forward.x = made.backward.x = with(from.forward.x);
  made.forward.out = with(from.forward.out);
  made.backward.d_out = with(from.backward.d_out);
  made.backward.dx = with(*from.backward.dx);
  for_each_transformer_parameter([&](const char*, auto, auto gradient) {
    const std::optional<TensorView>& one = from.backward.gradients.*gradient;
    if (one) made.backward.gradients.*gradient = with(*one);
  });
  return made;
}

/// The same in fp64, of the same values, in the memory of `to`.
inline TransformerBlockTraining widened(RandomTensors& to, const TransformerBlockTraining& from) {
  TransformerBlockTraining made =
      replaced(from, [&](const TensorView& view) { return to.copy(DType::kFloat64, view); });
  made.backward.saved = memory_to_save(to, made.forward);
  made.forward.saved = made.backward.saved;
  return made;
}

/// Calls visit(name, a's, b's) for each output of the two calls.
template <class Visit>
void for_each_output(const TransformerBlockTraining& a, const TransformerBlockTraining& b,
                     const Visit& visit) {
  visit("out", a.forward.out, b.forward.out);
  visit("dx", *a.backward.dx, *b.backward.dx);
  for_each_transformer_parameter([&](const char* name, auto, auto gradient) {
    const auto &one = a.backward.gradients.*gradient, &other = b.backward.gradients.*gradient;
    if (one) visit(name, *one, *other);
  });
}

}  // namespace tandem::tools
