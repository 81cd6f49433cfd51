// The roles of gla_reverse_kernel that move data and make decays: each one warp or one thread.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/decay/gradient.cuh"
#include "cuda/gla/reverse/shared.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

/// Copies chunks in, and dq and dk of finished ones out. One thread.
template <class Config>
struct ReverseCopies {
  const ReverseParams& params;
  ReverseShared<Config>& shared;
  const ReverseHead head;

  using Stage = typename ReverseShared<Config>::Stage;

  static constexpr int kBytes = 2 * (Config::kKeyTileBytes + Config::kValueTileBytes);

  /// Loads what no gradient leaves through.
  __device__ void load_first(ReversePosition at) const {
    Stage& stage = shared.stages[at.stage()];
    Barrier& full = shared.full[at.stage()];
    full.arrive_and_expect(kBytes);
    load_tile(params.k_map, full, stage.k, Config::kKeyDim, head.tile(at.n));
    load_tile(params.d_o_map, full, stage.d_o, Config::kValueDim, head.tile(at.n));
  }
  __device__ void load_others(ReversePosition at) const {
    Stage& stage = shared.stages[at.stage()];
    Barrier& full = shared.full[at.stage()];
    load_tile(params.v_map, full, stage.v, Config::kValueDim, head.tile(at.n));
    load_tile(params.q_map, full, stage.q, Config::kKeyDim, head.tile(at.n));
  }
  __device__ void store(ReversePosition at) const {
    const Stage& stage = shared.stages[at.stage()];
    TileCoordinate to = head.tile(at.n);
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel, to.column += kPanelColumns) {
      store_panel(params.dk_map, stage.v + panel * panel_bytes(64), to);
      store_panel(params.dq_map, stage.q + panel * panel_bytes(64), to);
    }
  }

  /// Has the state role take the gradient behind the segment, through the second chunk's stage.
  __device__ void enter_gradient() const {
    if (params.entry_gradients == nullptr) return;
    follow_stream();  // it comes from this call's kernels
    const GlaForwardProblem& problem = params.problem.forward;
    const std::int64_t size = std::int64_t{problem.K} * problem.V;
    const auto bytes = static_cast<std::uint32_t>(sizeof(float) * size);
    shared.entry_loaded.arrive_and_expect(bytes);
    cute::SM90_BULK_COPY_G2S::copy(params.entry_gradients + head.index * size,
                                   &shared.entry_loaded.word, shared.entry(), bytes);
    shared.entry_read.wait(0);
  }

  __device__ void run() const {
    for (ReversePosition at; at.n < min(2, head.chunks); at = at.next()) {
      if (at.n == 1) enter_gradient();
      load_first(at);
      load_others(at);
    }
    if (head.chunks < 2) enter_gradient();
    for (ReversePosition at; at.n < head.chunks; at = at.next()) {
      const bool more = at.n + 2 < head.chunks;
      shared.done[at.stage()].wait(at.stage_parity());
      store(at);
      if (more) load_first({at.n + 2});
      wait_stores_read();
      if (more) load_others({at.n + 2});
    }
  }
};

/// Copies the state before each pair of chunks in. One thread.
template <class Config>
struct ReverseStates {
  const ReverseParams& params;
  ReverseShared<Config>& shared;
  const ReverseHead head;

  __device__ void run() const {
    follow_stream();
    for (int pair = 0; pair < head.pairs; ++pair) {
      shared.state_empty.wait((pair & 1) ^ 1);
      shared.state_loaded.arrive_and_expect(Config::kStateBytes);
      for (int value = 0; value < Config::kValueDim; value += 64) {
        TileCoordinate from = head.state(params, head.pairs - 1 - pair, value);
        char* to = shared.state + value / 64 * panel_bytes(64);
        for (; from.column < Config::kKeyDim; from.column += kPanelColumns) {
          load_panel(params.states_map, shared.state_loaded, to, from);
          to += panel_bytes(Config::kValueDim);
        }
      }
    }
  }
};

/// Makes the decay factors of chunks, and d_log_decay from the sums that the other roles leave. One
/// warp.
template <class Config>
struct ReverseDecays {
  const ReverseParams& params;
  ReverseShared<Config>& shared;
  const ReverseHead head;

  using Tokens = typename ReverseShared<Config>::Tokens;

  /// Loads a chunk's natural-log decays, 0 where there is no token.
  __device__ LogDecays load(int n) const {
    const DecayTensor& decay = params.problem.forward.log_decay;
    const float* own = decay.data + head.batch * decay.batch_stride + head.head * decay.head_stride;
    // The gradient that enters behind the segment has the decay of the token there.
    const int end = min(head.end(), static_cast<int>(params.problem.forward.T));
    const auto of_token = [&](int offset) {
      const int time = head.begin(n) + offset;
      if (decay.data == nullptr || time >= end) return 0.0f;
      return own[std::int64_t{time} * decay.time_stride];
    };
    const int token = 2 * (threadIdx.x % 32);
    return {{of_token(token), of_token(token + 1)}, of_token(64)};
  }

  __device__ void prepare(ReversePosition at, const LogDecays& log_decay) const {
    Tokens& tokens = shared.tokens[at.stage()];
    *reinterpret_cast<float2*>(&tokens.log_decay[2 * (threadIdx.x % 32)]) = log_decay.own;
    const float scale = params.problem.forward.scale;
    compute_chunk_decays(log_decay, scale, tokens.decay, tokens.decay_behind);
    shared.full[at.stage()].arrive();
  }

  /// What the other roles leave of a chunk, of this lane's two tokens.
  struct Sums {
    float2 query_state;  // a
    float2 key_state;    // b
    float2 intra;        // columns less rows of E
    float2 log_decay;
  };
  __device__ static Sums read(const Tokens& tokens) {
    const int token = 2 * (threadIdx.x % 32);
    const auto own = [&](const float(&rows)[64]) {
      return *reinterpret_cast<const float2*>(&rows[token]);
    };
    const float2 rows = own(tokens.key_intra);
    Sums sums{
        own(tokens.query_state), own(tokens.key_state), {-rows.x, -rows.y}, own(tokens.log_decay)};
#pragma unroll
    for (const auto& of_warp : tokens.query_intra) {
      const float2 columns = own(of_warp);
      sums.intra.x += columns.x;
      sums.intra.y += columns.y;
    }
    return sums;
  }

  /// Writes d_log_decay of the n-th chunk's tokens, given the flow through it; returns the sum of
  /// this lane's two. Sets `flow` to that from the chunk on.
  __device__ float differentiate(int n, const Sums& sums, float& flow) const {
    const float2 a = sums.query_state, b = sums.key_state;
    const float through = inclusive_sum(b.x + b.y);
    const float2 dg =
        decay_gradient_from_flow(flow, {a.x + sums.intra.x, a.y + sums.intra.y}, b, through);
    flow += last_lane(through);
    const DecayGradient& to = params.problem.d_log_decay;
    const int begin = head.begin(n), token = 2 * (threadIdx.x % 32);
    const std::int64_t left = params.problem.forward.T - begin;
    const float first = token < left ? unless_forgotten(dg.x, sums.log_decay.x) : 0.0f;
    const float second = token + 1 < left ? unless_forgotten(dg.y, sums.log_decay.y) : 0.0f;
    if (to.per_token) {
      if (token < left) *gradient_at(to, head.batch, begin + token, head.head) = first;
      if (token + 1 < left) *gradient_at(to, head.batch, begin + token + 1, head.head) = second;
    }
    return first + second;
  }

  /// Returns a sum that is finite only where all of a chunk's inputs are, and the states that reach
  /// it: they are in its tokens' sums.
  __device__ static float sum_all(const Sums& sums) {
    return sums.query_state.x + sums.query_state.y + sums.key_state.x + sums.key_state.y +
           sums.intra.x + sums.intra.y;
  }

  /// Returns the flow through a pair's first chunk.
  __device__ static float first_flow(const Tokens& tokens) {
    return (tokens.flows[0] + tokens.flows[1] + (tokens.flows[2] + tokens.flows[3])) *
           tokens.decay_behind.through;
  }

  __device__ void run() const {
    for (ReversePosition at; at.n < min(2, head.chunks); at = at.next()) prepare(at, load(at.n));
    const bool differentiates = params.problem.d_log_decay.data != nullptr;
    float sum = 0.0f;
    float zero = 0.0f;  // NaN behind what is not finite
    Sums second{};      // of a pair's second chunk, which waits for the flow through the first
    for (ReversePosition at; at.n < head.chunks; at = at.next()) {
      const bool more = at.n + 2 < head.chunks;
      const LogDecays log_decay = load(more ? at.n + 2 : at.n);
      const Tokens& tokens = shared.tokens[at.stage()];
      shared.done[at.stage()].wait(at.stage_parity());
      const Sums own = read(tokens);
      zero += 0.0f * sum_all(own);
      if (differentiates && !head.is_second(at.n)) {
        float flow = first_flow(tokens);
        sum += differentiate(at.n, own, flow);
        if (at.n > 0) {
          flow -= sum_warp(second.query_state.x + second.query_state.y);
          // Through a reset nothing flows, not what was rounded before it either.
          const bool reset = forgets(second.log_decay.x) || forgets(second.log_decay.y);
          if (__any_sync(0xFFFFFFFFu, reset)) flow = 0.0f;
          sum += differentiate(at.n - 1, second, flow);
        }
      }
      second = own;
      __syncwarp();
      if (more) prepare({at.n + 2}, log_decay);
    }
    if (params.guard.non_finite != nullptr && !(zero == 0.0f)) *params.guard.non_finite = 1;
    const DecayGradient& to = params.problem.d_log_decay;
    if (to.data != nullptr && !to.per_token) {
      sum = sum_warp(sum);
      if (threadIdx.x % 32 == 0) params.decay_sums[head.index] = sum;
    }
  }
};

}  // namespace tandem::cuda::gla
