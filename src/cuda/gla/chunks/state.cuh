// The states role of gla_chunk_gradients_kernel: the states between the chunks of a pair, and dS
// from pair to pair.
#pragma once

#include "cuda/gla/chunks/products.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct ChunkState {
  const ChunkBackwardParams& params;
  ChunkGradientsShared& shared;

  using Element = typename Config::Element;
  using Stage = ChunkGradientsShared::Stage;
  using State = float[32];  // a tile of 64 x 64

  /// Reads the state at an end of the pair. Inside the walk's second segment of two it is completed
  /// by what is left of the state where that begins, which lies in `between`.
  __device__ static void read(const Stage& stage, int which, char* panel, const char* between,
                              State& state) {
    const auto visit = [](const char* tile, auto&& each) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        std::uint32_t packed[4];
        get_columns<64>(tile, step, 0, packed);
#pragma unroll
        for (int i = 0; i < 4; ++i) each(8 * step + 2 * i, unpack_pair<Element>(packed[i]));
      }
    };
    visit(panel, [&](int i, float2 pair) {
      state[i] = pair.x;
      state[i + 1] = pair.y;
    });
    if (Config::kReverse || !stage.enters[which]) return;
    const float left = which == 0 ? stage.entry_factors.state : stage.entry_factors.gradient;
    visit(between, [&](int i, float2 pair) {
      state[i] += left * pair.x;
      state[i + 1] += left * pair.y;
    });
    put_rows<Element>(state, panel);
  }

  /// Passes a state over a chunk: it decays, and the decayed columns of v times k are added.
  __device__ static void pass(State& state, const char* v, const char* k,
                              const ChunkDecay<64>& decay) {
    PackedRows decayed;
    load_decayed_values<Element, 0, 4>(decayed, v, decay.to_state);
#pragma unroll
    for (float& value : state) value *= decay.state_to_state;
    fence_registers(state);
    wgmma_begin();
    multiply_tokens<Element>(state, decayed, k, true);
    wgmma_wait<0>();
    hold_operand(decayed);
    fence_registers(state);
  }

  __device__ StateTile tile() const {
    const GlaForwardProblem& problem = params.problem.forward;
    return {problem.K, problem.V, {problem.V, 1}, 0, 0};
  }
  /// Of a head in [B,H,K,V], or null.
  template <class Value>
  __device__ Value* of_head(Value* states, const ChunkPair& pair) const {
    const GlaForwardProblem& problem = params.problem.forward;
    if (states == nullptr) return nullptr;
    return states + (std::int64_t{pair.batch} * problem.H + pair.head) * problem.K * problem.V;
  }

  /// Makes the states of a pair; `gradient` is dS behind the pair and then, in a reverse walk, dS
  /// before it.
  __device__ void make(Stage& stage, std::uint32_t parity, State& gradient) const {
    auto& [first, second] = stage.chunks;
    const auto& tokens = stage.tokens;
    stage.inputs.wait(parity);
    stage.states.wait(parity);
    if constexpr (Config::kReverse) {
      put_rows<Element>(gradient, second.state_gradient);
    } else {
      read(stage, 1, second.state_gradient, first.state_gradient, gradient);
    }
    pass(gradient, second.d_o, second.q, tokens[1].decay_behind);
    put_rows<Element>(gradient, first.state_gradient);

    State state;
    read(stage, 0, first.state, second.state, state);
    pass(state, first.v, first.k, tokens[0].decay);
    put_rows<Element>(state, second.state);

    if constexpr (Config::kReverse) pass(gradient, first.d_o, first.q, tokens[0].decay_behind);
    fence_shared_for_async_proxy();
    stage.all_states.arrive();
  }

  __device__ void run() const {
    const ChunkPairs<Config> pairs(params);
    RingPosition<ChunkGradientsShared::kStages> now;
    State gradient;
    for (unsigned n = 0; n < pairs.count; ++n, now.advance()) {
      Stage& stage = shared.stages[now.stage];
      if constexpr (Config::kReverse) {
        const ChunkPair pair = pairs[n];
        if (pair.index == params.pairs - 1) load_behind_head(pair, gradient);
        make(stage, now.parity, gradient);
        if (pair.index == 0) store_before_head(pair, gradient);
      } else {
        make(stage, now.parity, gradient);
      }
    }
  }

  /// Loads d_final_state.
  __device__ void load_behind_head(const ChunkPair& pair, State& gradient) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) gradient[i] = 0.0f;
    const float* const from = of_head(params.problem.d_final_state, pair);
    if (from != nullptr) load_state(gradient, from, tile());
  }
  /// Stores d_initial_state.
  __device__ void store_before_head(const ChunkPair& pair, State& gradient) const {
    float* const to = of_head(params.problem.d_initial_state, pair);
    if (to == nullptr) return;
    Item item;
    item.batch = pair.batch;
    item.head = pair.head;
    item.length = static_cast<int>(params.problem.forward.T);
    const float factor = first_factor(params.problem.forward.log_decay, item);
#pragma unroll
    for (int i = 0; i < 32; ++i) gradient[i] *= factor;
    store_state(gradient, to, tile());
  }
};

}  // namespace tandem::cuda::gla
