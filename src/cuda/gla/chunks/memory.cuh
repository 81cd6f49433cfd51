// The copies and decays roles of gla_chunk_gradients_kernel.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/chunks/shared.cuh"
#include "cuda/gla/decay/gradient.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

/// Loads the chunk's natural-log decays, 0 where there is no token. All lanes of one warp.
__device__ inline LogDecays load_log_decays(const DecayTensor& decay, const ChunkPair& pair,
                                            int which, std::int64_t T) {
  const float* head = decay.data + pair.batch * decay.batch_stride + pair.head * decay.head_stride;
  const auto of_token = [&](int offset) {
    const std::int64_t time = std::int64_t{pair.begin} + 64 * which + offset;
    if (decay.data == nullptr || time >= T) return 0.0f;
    return head[time * decay.time_stride];
  };
  const int token = 2 * (threadIdx.x % 32);
  return {{of_token(token), of_token(token + 1)}, of_token(64)};
}

/// Writes d_log_decay of the chunk's tokens, or their sum for a constant decay, and notes where not
/// all of the chunk's inputs, and the states that reach it, are finite: its sums hold them all. All
/// lanes of one warp.
__device__ inline void differentiate_decay(const ChunkBackwardParams& params,
                                           const ChunkGradientsShared::Tokens& tokens,
                                           const ChunkPair& pair, int which) {
  const DecayGradient& to = params.problem.d_log_decay;
  const int token = 2 * (threadIdx.x % 32);
  const auto own = [&](const float(&rows)[64]) {
    return *reinterpret_cast<const float2*>(&rows[token]);
  };
  const int begin = pair.begin + 64 * which;
  const float2 a = own(tokens.query_rows), b = own(tokens.key_state_rows);
  const float2 c = own(tokens.key_rows);
  if (params.guard.non_finite != nullptr) {
    const float sum = a.x + a.y + (b.x + b.y) + (c.x + c.y);
    if (!(0.0f * sum == 0.0f)) *params.guard.non_finite = 1;
  }
  if (to.data == nullptr) return;
  const float2 log_decay = own(tokens.log_decay);
  const float flow = (tokens.flows[0] + tokens.flows[1] + (tokens.flows[2] + tokens.flows[3])) *
                     tokens.decay_behind.through;
  const float2 dg =
      decay_gradient_from_flow(flow, {a.x - c.x, a.y - c.y}, b, inclusive_sum(b.x + b.y));
  const std::int64_t left = params.problem.forward.T - begin;
  const float first = token < left ? unless_forgotten(dg.x, log_decay.x) : 0.0f;
  const float second = token + 1 < left ? unless_forgotten(dg.y, log_decay.y) : 0.0f;
  if (to.per_token) {
    if (token < left) *gradient_at(to, pair.batch, begin + token, pair.head) = first;
    if (token + 1 < left) {
      *gradient_at(to, pair.batch, begin + token + 1, pair.head) = second;
    }
  } else {
    const float sum = sum_warp(first + second);
    if (token == 0) params.decay_sums[2 * pair.panel_index + which] = sum;
  }
}

/// Copies in and out, two chunk pairs ahead, by one thread.
template <class Config>
struct ChunkCopies {
  const ChunkBackwardParams& params;
  ChunkGradientsShared& shared;

  using Stage = ChunkGradientsShared::Stage;
  static constexpr int kPanelBytes = panel_bytes(64);
  static constexpr int kStages = ChunkGradientsShared::kStages;

  /// Loads k and d_o, into panels that no gradient leaves through.
  __device__ void load_first_inputs(Stage& stage, const ChunkPair& pair) const {
    stage.inputs.arrive_and_expect(8 * kPanelBytes);
    for (int i = 0; i < 2; ++i) {
      load_panel(params.k_map, stage.inputs, stage.chunks[i].k, pair.tile(i));
      load_panel(params.d_o_map, stage.inputs, stage.chunks[i].d_o, pair.tile(i));
    }
  }
  __device__ void load_other_inputs(Stage& stage, const ChunkPair& pair) const {
    for (int i = 0; i < 2; ++i) {
      load_panel(params.q_map, stage.inputs, stage.chunks[i].q, pair.tile(i));
      load_panel(params.v_map, stage.inputs, stage.chunks[i].v, pair.tile(i));
    }
  }
  /// S before, and dS behind, the n-th pair of a pair's sequence.
  __device__ void load_state(Stage& stage, const ChunkPair& pair, int n, char* panel) const {
    load_panel(params.states_map, stage.states, panel, pair.state(n, params.pairs));
  }
  __device__ void load_gradient(Stage& stage, const ChunkPair& pair, int n, char* panel) const {
    cute::SM90_BULK_COPY_G2S::copy(static_cast<const char*>(params.state_gradients) +
                                       (pair.panel_index - pair.index + n) * kPanelBytes,
                                   &stage.states.word, panel, kPanelBytes);
  }
  __device__ void load_states(Stage& stage, const ChunkPair& pair) const {
    if constexpr (Config::kReverse) {
      stage.states.arrive_and_expect(kPanelBytes);
      load_state(stage, pair, pair.index, stage.chunks[0].state);
      return;
    }
    // Of two segments the state where the second one begins, along either walk, is whole.
    const bool two = params.segments == 2;
    stage.enters[0] = two && pair.index > params.segment_pairs && !params.saved_states;
    stage.enters[1] = two && pair.index < params.segment_pairs - 1;
    const bool enters = stage.enters[0] || stage.enters[1];
    const int of_entry = enters ? kPanelBytes + static_cast<int>(sizeof(EntryFactors)) : 0;
    stage.states.arrive_and_expect(2 * kPanelBytes + of_entry);
    load_state(stage, pair, pair.index, stage.chunks[0].state);
    load_gradient(stage, pair, pair.index, stage.chunks[1].state_gradient);
  }
  /// Loads the state where the second segment begins, into a panel that a gradient may have left
  /// through.
  __device__ void load_entry(Stage& stage, const ChunkPair& pair) const {
    if (Config::kReverse || !(stage.enters[0] || stage.enters[1])) return;
    const int second = params.segment_pairs;
    if (stage.enters[0]) load_state(stage, pair, second, stage.chunks[1].state);
    if (stage.enters[1]) load_gradient(stage, pair, second - 1, stage.chunks[0].state_gradient);
    cute::SM90_BULK_COPY_G2S::copy(params.entry_factors + pair.panel_index, &stage.states.word,
                                   &stage.entry_factors, sizeof(EntryFactors));
  }
  __device__ void store(const Stage& stage, const ChunkPair& pair) const {
    store_panel(params.dv_map, stage.chunks[0].state_gradient, pair.tile(0));
    store_panel(params.dv_map, stage.chunks[1].state, pair.tile(1));
    for (int i = 0; i < 2; ++i) {
      store_panel(params.dk_map, stage.chunks[i].v, pair.tile(i));
      store_panel(params.dq_map, stage.chunks[i].q, pair.tile(i));
    }
  }

  __device__ void run() const {
    const ChunkPairs<Config> pairs(params);
#pragma unroll 1
    for (unsigned n = 0; n < kStages && n < pairs.count; ++n) {
      Stage& stage = shared.stages[n];
      const ChunkPair pair = pairs[n];
      // why before the stream is followed: the inputs were there before the previous kernel began.
      load_first_inputs(stage, pair);
      load_other_inputs(stage, pair);
      if (n == 0) follow_stream();  // the first pair's states before the second's inputs
      load_states(stage, pair);
      load_entry(stage, pair);
    }
    RingPosition<kStages> now;
    for (unsigned n = 0; n < pairs.count; ++n, now.advance()) {
      Stage& stage = shared.stages[now.stage];
      const bool more = n + kStages < pairs.count;
      const ChunkPair own = pairs[n], next = pairs[more ? n + kStages : n];
      stage.made.wait(now.parity);
      store(stage, own);
      if (more) {
        load_first_inputs(stage, next);
        load_states(stage, next);
      }
      wait_stores_read();
      if (more) {
        load_other_inputs(stage, next);
        load_entry(stage, next);
      }
    }
  }
};

/// Makes the decay factors of the chunk pairs that are copied in, and the gradient by the decays.
/// One warp.
template <class Config>
struct ChunkDecays {
  const ChunkBackwardParams& params;
  ChunkGradientsShared& shared;

  using Stage = ChunkGradientsShared::Stage;

  __device__ LogDecays load(const ChunkPair& pair, int which) const {
    return load_log_decays(params.problem.forward.log_decay, pair, which, params.problem.forward.T);
  }
  __device__ void prepare(Stage& stage, const LogDecays (&log_decay)[2]) const {
    const float scale = params.problem.forward.scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto& tokens = stage.tokens[i];
      *reinterpret_cast<float2*>(&tokens.log_decay[2 * (threadIdx.x % 32)]) = log_decay[i].own;
      compute_chunk_decays(log_decay[i], scale, tokens.decay, tokens.decay_behind);
    }
    stage.inputs.arrive();
  }

  __device__ void run() const {
    constexpr unsigned kStages = ChunkGradientsShared::kStages;
    const ChunkPairs<Config> pairs(params);
#pragma unroll 1
    for (unsigned n = 0; n < kStages && n < pairs.count; ++n) {
      const ChunkPair pair = pairs[n];
      prepare(shared.stages[n], {load(pair, 0), load(pair, 1)});
    }
    RingPosition<kStages> now;
    for (unsigned n = 0; n < pairs.count; ++n, now.advance()) {
      Stage& stage = shared.stages[now.stage];
      const bool more = n + kStages < pairs.count;
      const ChunkPair next = pairs[more ? n + kStages : n];
      const LogDecays log_decay[2] = {load(next, 0), load(next, 1)};
      stage.made.wait(now.parity);
      const ChunkPair pair = pairs[n];
      for (int i = 0; i < 2; ++i) differentiate_decay(params, stage.tokens[i], pair, i);
      __syncwarp();
      if (more) prepare(stage, log_decay);
    }
  }
};

}  // namespace tandem::cuda::gla
