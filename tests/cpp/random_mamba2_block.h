// A mamba2_block with random parameters on the host, for its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/real.h"
#include "cpp/random_tensors.h"
#include "tandem/blocks/mamba2_block.h"

namespace tandem::tools {

/// Calls visit(name, member of the block, member of its gradients) for each parameter.
template <class Visit>
void for_each_mamba2_parameter(const Visit& visit) {
  using Gradients = Mamba2BlockGradients;
  visit("input_norm", &Mamba2Block::input_norm, &Gradients::input_norm);
  visit("in_proj", &Mamba2Block::in_proj, &Gradients::in_proj);
  visit("conv1d_weight", &Mamba2Block::conv1d_weight, &Gradients::conv1d_weight);
  visit("conv1d_bias", &Mamba2Block::conv1d_bias, &Gradients::conv1d_bias);
  visit("dt_bias", &Mamba2Block::dt_bias, &Gradients::dt_bias);
  visit("A_log", &Mamba2Block::A_log, &Gradients::A_log);
  visit("D", &Mamba2Block::D, &Gradients::D);
  visit("norm", &Mamba2Block::norm, &Gradients::norm);
  visit("out_proj", &Mamba2Block::out_proj, &Gradients::out_proj);
}

struct Mamba2BlockSizes {
  std::int64_t d = 48, H = 4, P = 16, G = 2, N = 8, W = 4;
  bool conv_bias = true;
};

class RandomMamba2Block : public RandomTensors {
 public:
  RandomMamba2Block(DType dtype, const Mamba2BlockSizes& sizes, unsigned seed)
      : RandomTensors(dtype, seed), sizes_(sizes) {
    const auto& [d, H, P, G, N, W, conv_bias] = sizes;
    const std::int64_t channels = H * P + 2 * G * N;
    block.heads = H;
    block.groups = G;
    block.input_norm = normal({d}, 1, 0.1);
    block.in_proj = matrix(H * P + channels + H, d);
    block.conv1d_weight = normal({channels, W}, 0, 0.5);
    if (conv_bias) block.conv1d_bias = normal({channels}, 0, 0.3);
    block.dt_bias = normal({H}, -2, 1);
    block.A_log = normal({H}, 0.5, 0.5);
    block.D = normal({H}, 1, 0.3);
    block.norm = normal({H * P}, 1, 0.1);
    block.out_proj = matrix(d, H * P);
  }

  /// Of `count` sequences.
  Mamba2States states(std::int64_t count, double deviation) {
    const auto& [d, H, P, G, N, W, conv_bias] = sizes_;
    return {normal({count, H * P + 2 * G * N, W - 1}, 0, deviation),
            copy(real_dtype(dtype()), normal({count, H, N, P}, 0, deviation))};
  }

  Mamba2Block block;

 private:
  Mamba2BlockSizes sizes_;
};

/// A forward and a backward of a block, with all that they write.
struct Mamba2BlockTraining {
  Mamba2BlockForwardArgs forward;
  Mamba2BlockBackwardArgs backward;
};

inline SavedMemory memory_to_save(RandomTensors& memory, const Mamba2BlockForwardArgs& forward) {
  const std::size_t bytes = mamba2_block_saved_bytes(forward);
  return {memory.aligned(bytes), bytes};
}

/// With random x and d_out [B,T,d], states and their gradients.
inline Mamba2BlockTraining make_training(
    RandomMamba2Block& random, std::int64_t B, std::int64_t T,
    const std::optional<TensorView>& cu_seqlens = std::nullopt) {
  const Dims tokens = {B, T, random.block.input_norm.shape[0]};
  const std::int64_t N = cu_seqlens ? cu_seqlens->shape[0] - 1 : B;
  Mamba2BlockTraining made;
  made.forward = {.block = random.block,
                  .x = random.normal(tokens, 0, 1),
                  .cu_seqlens = cu_seqlens,
                  .initial_states = random.states(N, 0.5),
                  .final_states = random.states(N, 0),
                  .out = random.zeros(tokens)};
  made.backward = {.block = random.block,
                   .x = made.forward.x,
                   .cu_seqlens = cu_seqlens,
                   .initial_states = made.forward.initial_states,
                   .saved = memory_to_save(random, made.forward),
                   .d_out = random.normal(tokens, 0, 1),
                   .d_final_states = random.states(N, 0.5),
                   .dx = random.zeros(tokens),
                   .d_initial_states = random.states(N, 0)};
  made.forward.saved = made.backward.saved;
  for_each_mamba2_parameter([&](const char*, auto weight, auto gradient) {
    const std::optional<TensorView> parameter = random.block.*weight;
    if (parameter) made.backward.gradients.*gradient = random.zeros(parameter->shape);
  });
  return made;
}

/// The same with every tensor of floating point replaced by `with(tensor)`, and memory to save in.
template <class With>
Mamba2BlockTraining replaced(const Mamba2BlockTraining& from, const With& with) {
  const auto states = [&](const std::optional<Mamba2States>& one) {
    return std::optional(Mamba2States{with(one->conv), with(one->state)});
  };
  Mamba2BlockTraining made = from;
  Mamba2BlockForwardArgs& forward = made.forward;
  Mamba2BlockBackwardArgs& backward = made.backward;
  for_each_mamba2_parameter([&](const char*, auto weight, auto gradient) {
    const std::optional<TensorView> parameter = from.forward.block.*weight;
    if (!parameter) return;
    forward.block.*weight = with(*parameter);
    backward.gradients.*gradient = with(*(from.backward.gradients.*gradient));
  });
  backward.block = forward.block;
  forward.x = backward.x = with(from.forward.x);
  forward.out = with(from.forward.out);
  forward.initial_states = backward.initial_states = states(from.forward.initial_states);
  forward.final_states = states(from.forward.final_states);
  backward.d_out = with(from.backward.d_out);
  backward.dx = with(*from.backward.dx);
  backward.d_final_states = states(from.backward.d_final_states);
  backward.d_initial_states = states(from.backward.d_initial_states);
  return made;
}

/// The same in fp64, of the same values, in the memory of `to`.
inline Mamba2BlockTraining widened(RandomTensors& to, const Mamba2BlockTraining& from) {
  Mamba2BlockTraining made =
      replaced(from, [&](const TensorView& view) { return to.copy(DType::kFloat64, view); });
  made.backward.saved = memory_to_save(to, made.forward);
  made.forward.saved = made.backward.saved;
  return made;
}

/// Calls visit(name, a's, b's) for each output of the two calls.
template <class Visit>
void for_each_output(const Mamba2BlockTraining& a, const Mamba2BlockTraining& b,
                     const Visit& visit) {
  visit("out", a.forward.out, b.forward.out);
  visit("final_states.conv", a.forward.final_states->conv, b.forward.final_states->conv);
  visit("final_states.state", a.forward.final_states->state, b.forward.final_states->state);
  visit("dx", *a.backward.dx, *b.backward.dx);
  const Mamba2States &of_a = *a.backward.d_initial_states, &of_b = *b.backward.d_initial_states;
  visit("d_initial_states.conv", of_a.conv, of_b.conv);
  visit("d_initial_states.state", of_a.state, of_b.state);
  for_each_mamba2_parameter([&](const char* name, auto, auto gradient) {
    const auto &one = a.backward.gradients.*gradient, &other = b.backward.gradients.*gradient;
    if (one) visit(name, *one, *other);
  });
}

}  // namespace tandem::tools
