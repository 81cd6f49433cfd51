// A gla_block with random parameters on the host, for its tests.
#pragma once

#include <cstdint>
#include <optional>

#include "core/real.h"
#include "cpp/random_tensors.h"
#include "tandem/blocks/gla_block.h"

namespace tandem::tools {

/// Calls visit(name, member of the block, member of its gradients) for each parameter.
template <class Visit>
void for_each_parameter(const Visit& visit) {
  visit("attn_norm", &GlaBlock::attn_norm, &GlaBlockGradients::attn_norm);
  visit("q_proj", &GlaBlock::q_proj, &GlaBlockGradients::q_proj);
  visit("k_proj", &GlaBlock::k_proj, &GlaBlockGradients::k_proj);
  visit("v_proj", &GlaBlock::v_proj, &GlaBlockGradients::v_proj);
  visit("g_proj", &GlaBlock::g_proj, &GlaBlockGradients::g_proj);
  visit("gk_proj", &GlaBlock::gk_proj, &GlaBlockGradients::gk_proj);
  visit("gk_bias", &GlaBlock::gk_bias, &GlaBlockGradients::gk_bias);
  visit("g_norm_swish_gate", &GlaBlock::g_norm_swish_gate, &GlaBlockGradients::g_norm_swish_gate);
  visit("o_proj", &GlaBlock::o_proj, &GlaBlockGradients::o_proj);
}

struct GlaBlockSizes {
  std::int64_t d = 48, H = 2, K = 16, V = 24;
  Activation feature_map = Activation::kNone;
};

class RandomGlaBlock : public RandomTensors {
 public:
  RandomGlaBlock(DType dtype, const GlaBlockSizes& sizes, unsigned seed)
      : RandomTensors(dtype, seed) {
    const auto& [d, H, K, V, feature_map] = sizes;
    block.heads = H;
    block.feature_map = feature_map;
    block.attn_norm = normal({d}, 1, 0.1);
    block.q_proj = matrix(H * K, d);
    block.k_proj = matrix(H * K, d);
    block.v_proj = matrix(H * V, d);
    block.g_proj = matrix(H * V, d);
    block.gk_proj = matrix(H, d);
    block.gk_bias = normal({H}, 1, 1);
    block.g_norm_swish_gate = normal({V}, 1, 0.1);
    block.o_proj = matrix(d, H * V);
    block.gate_logit_normalizer = 4;
  }

  /// Of `count` sequences, in the dtype that states have.
  TensorView states(std::int64_t count, double deviation) {
    return copy(real_dtype(dtype()), normal(state_shape(count), 0, deviation));
  }
  Dims state_shape(std::int64_t count) const {
    const std::int64_t H = block.heads;
    return {count, H, block.q_proj.shape[0] / H, block.v_proj.shape[0] / H};
  }
  /// Zeros for all gradients.
  GlaBlockGradients gradients() {
    GlaBlockGradients made;
    for_each_parameter([&](const char*, auto weight, auto gradient) {
      made.*gradient = zeros((block.*weight).shape);
    });
    return made;
  }

  GlaBlock block;
};

/// A forward and a backward of a block, with all that they write.
struct GlaBlockTraining {
  GlaBlockForwardArgs forward;
  GlaBlockBackwardArgs backward;
};

inline SavedMemory memory_to_save(RandomTensors& memory, const GlaBlockForwardArgs& forward) {
  const std::size_t bytes = gla_block_saved_bytes(forward);
  return {memory.aligned(bytes), bytes};
}

/// With random x and d_out [B,T,d] and, where there are states, those and their gradients.
inline GlaBlockTraining make_training(RandomGlaBlock& random, std::int64_t B, std::int64_t T,
                                      bool states,
                                      const std::optional<TensorView>& cu_seqlens = std::nullopt) {
  const std::int64_t d = random.block.attn_norm.shape[0];
  const std::int64_t N = cu_seqlens ? cu_seqlens->shape[0] - 1 : B;
  GlaBlockTraining made;
  GlaBlockForwardArgs& forward = made.forward;
  forward = {.block = random.block,
             .x = random.normal({B, T, d}, 0, 1),
             .cu_seqlens = cu_seqlens,
             .out = random.zeros({B, T, d})};
  if (states) {
    forward.initial_state = random.states(N, 0.5);
    forward.final_state = random.states(N, 0);
  }
  forward.saved = memory_to_save(random, forward);
  made.backward = {.block = random.block,
                   .x = forward.x,
                   .cu_seqlens = cu_seqlens,
                   .initial_state = forward.initial_state,
                   .saved = *forward.saved,
                   .d_out = random.normal({B, T, d}, 0, 1),
                   .dx = random.zeros({B, T, d}),
                   .gradients = random.gradients()};
  if (states) {
    made.backward.d_final_state = random.states(N, 0.5);
    made.backward.d_initial_state = random.states(N, 0);
  }
  return made;
}

/// The same in fp64, of the same values, in the memory of `to`.
inline GlaBlockTraining widened(RandomTensors& to, const GlaBlockTraining& from) {
  const auto wide = [&](const TensorView& view) { return to.copy(DType::kFloat64, view); };
  const auto if_there = [&](const std::optional<TensorView>& view) {
    return view ? std::optional(wide(*view)) : std::nullopt;
  };
  GlaBlockTraining made = from;
  GlaBlockForwardArgs& forward = made.forward;
  GlaBlockBackwardArgs& backward = made.backward;
  for_each_parameter([&](const char*, auto weight, auto gradient) {
    forward.block.*weight = wide(from.forward.block.*weight);
    backward.gradients.*gradient = if_there(from.backward.gradients.*gradient);
  });
  backward.block = forward.block;
  forward.x = backward.x = wide(from.forward.x);
  forward.out = wide(from.forward.out);
  forward.initial_state = backward.initial_state = if_there(from.forward.initial_state);
  forward.final_state = if_there(from.forward.final_state);
  backward.saved = memory_to_save(to, forward);
  forward.saved = backward.saved;
  backward.d_out = wide(from.backward.d_out);
  backward.d_final_state = if_there(from.backward.d_final_state);
  backward.dx = if_there(from.backward.dx);
  backward.d_initial_state = if_there(from.backward.d_initial_state);
  return made;
}

/// Calls visit(name, a's, b's) for each output of the two calls.
template <class Visit>
void for_each_output(const GlaBlockTraining& a, const GlaBlockTraining& b, const Visit& visit) {
  visit("out", a.forward.out, b.forward.out);
  visit("final_state", *a.forward.final_state, *b.forward.final_state);
  visit("dx", *a.backward.dx, *b.backward.dx);
  visit("d_initial_state", *a.backward.d_initial_state, *b.backward.d_initial_state);
  for_each_parameter([&](const char* name, auto, auto gradient) {
    visit(name, *(a.backward.gradients.*gradient), *(b.backward.gradients.*gradient));
  });
}

}  // namespace tandem::tools
