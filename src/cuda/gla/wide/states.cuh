// gla_wide_states_kernel: the states at both ends of every span, for gla_wide_gradients_kernel.
//
// A CTA walks a sequence for a head, 64 columns of V or up to four times as many, and 128 of K,
// either over k and v from the first token on, or over q and do from the last token back, in chunks
// of 64 tokens. It leaves the states that it has where a span begins along the walk, rounded to 16
// bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a span
//   dSt = the same of do and q (parts/decay.cuh)     behind a span, without the next token's decay
//
// Role      threads                registers  work
//   prepare a warp per 64 of V     32 or 56  decay factors of later chunks; the first warp's first
//                                            thread: k and v of later chunks by TMA (3 stages)
//   state   a warpgroup each     112 or 200  St in registers, out by bulk copies
// Shared memory: 90 KB for 64 columns of V, for two CTAs an SM, 223 KB for four times as many.
//
//   prepare ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state   -round, store- -decay V- =V K=   -decay V- =V K=
// prepare waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: q, k, v and do read once (k and q for other columns of V from the L2), and two states of
// 2 K V bytes written per head and span. Numerics: fp32 states; rounded are the decayed V, and what
// is left behind.
#pragma once

#include "cuda/gla/common/state_walk.cuh"
#include "cuda/gla/wide/params.h"

namespace tandem::cuda::gla {

template <class ElementT, int kWalksT, bool kReverseT>
struct WideStatesConfig {
  using Element = ElementT;
  static constexpr int kWalks = kWalksT;
  static constexpr bool kReverse = kReverseT;
  static constexpr int kChunk = 64;
  static constexpr int kKeyDim = kWideKeys;
};

/// One of a CTA's walks.
template <class Config>
struct WideStatesWalk : StateWalk<Config, WideStatesWalk<Config>> {
  using Base = StateWalk<Config, WideStatesWalk>;
  using Base::all_chunks, Base::item, Base::kTileBytes;
  using typename Base::Element, typename Base::Position, typename Base::Shared,
      typename Base::State;

  const WideBackwardParams& params;
  int head;         // of the launch
  int first_panel;  // of V, of the CTA's
  int panel;        // of V
  int part;         // of K

  __device__ WideStatesWalk(const WideBackwardParams& params, Shared& shared, int own,
                            unsigned index)
      : Base(shared, own), params(params) {
    const GlaForwardProblem& problem = params.problem.forward;
    const unsigned parts = params.key_parts, of_part = index / parts;
    part = static_cast<int>(index - of_part * parts);
    const unsigned ctas = state_walk_ctas(params.value_panels, Config::kWalks);
    head = static_cast<int>(of_part / ctas);
    const int cta = static_cast<int>(of_part - head * ctas);
    first_panel = first_state_walk(cta, params.value_panels, Config::kWalks);
    Base::walks = first_state_walk(cta + 1, params.value_panels, Config::kWalks) - first_panel;
    panel = first_panel + own;
    const int of_all = params.first_head + head;
    set_sequence(item, problem, of_all / problem.H);
    item.head = of_all % problem.H;
    item.first_column = 64 * panel;
  }

  __device__ int first_key() const { return part * Config::kKeyDim; }
  /// Where the part of K begins in a head's state in fp32.
  __device__ std::int64_t state_offset() const {
    const std::int64_t keys =
        std::int64_t{params.first_head + head} * Base::problem().K + first_key();
    return keys * Base::problem().V;
  }
  __device__ const float* begin_state() const {
    const float* states =
        Config::kReverse ? params.problem.d_final_state : params.problem.forward.initial_state;
    return states == nullptr ? nullptr : states + state_offset();
  }
  __device__ float* end_state() const {
    float* states = Config::kReverse ? params.problem.d_initial_state : nullptr;
    return states == nullptr ? nullptr : states + state_offset();
  }
  /// Chunks that come before some span, or all of them.
  __device__ int chunks() const {
    const int all = all_chunks();
    if (end_state() != nullptr) return all;
    const int last_span = Config::kReverse ? kWideChunks : (all - 1) % kWideChunks + 1;
    return max(all - last_span, 0);
  }
  /// Chunks walked before the second span along the walk begins.
  __device__ int first_span() const {
    return Config::kReverse ? (all_chunks() - 1) % kWideChunks + 1 : kWideChunks;
  }

  __device__ StateColumns columns_of(int walk) const {
    return {item.head, 64 * (first_panel + walk)};
  }
  __device__ void load(Position at, int chunk) const {
    Base::load(at, chunk, Config::kReverse ? params.q_map : params.k_map,
               Config::kReverse ? params.d_o_map : params.v_map, item.head, first_key());
  }

  __device__ std::int64_t kept(int span) const {
    return (std::int64_t{head} * params.spans + span) * params.state_bytes() +
           (std::int64_t{panel} * params.key_parts + part) * kTileBytes;
  }

  /// Stores the state where a span begins.
  __device__ void keep(const State& state, int span) const {
    Base::leave(state, (Config::kReverse ? params.state_gradients : params.states) + kept(span));
  }

  __device__ void walk() const {
    State state;
    load_entry_state(state, begin_state(), Base::tile(Base::problem().K - first_key()));
    Position at;
    const int end = chunks(), spans = (all_chunks() + kWideChunks - 1) / kWideChunks;
    int left = 0;  // chunks until the next span begins
    int span = Config::kReverse ? spans - 1 : 0;
    for (int chunk = 0; chunk < end; ++chunk, at.advance()) {
      if (left == 0) {
        keep(state, span);
        left = chunk == 0 ? first_span() : kWideChunks;
        span += Config::kReverse ? -1 : 1;
      }
      --left;
      Base::walk_chunk(state, at);
    }
    if (end_state() == nullptr && spans > 0) keep(state, span);
    if (end_state() != nullptr)
      Base::store_end(state, end_state(), Base::problem().K - first_key());
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

template <class Element, int kWalks>
__global__ __launch_bounds__(
    StateWalkShape<kWalks>::kThreads,
    StateWalkShape<kWalks>::kCtas) void gla_wide_states_kernel(const __grid_constant__
                                                                   WideBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  const bool reverse = blockIdx.x % 2 == 1;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 32) {
    prefetch_tensor_map(reverse ? params.q_map : params.k_map);
    prefetch_tensor_map(reverse ? params.d_o_map : params.v_map);
  }
  const auto run = [&]<bool kReverse>() {
    using Walk = WideStatesWalk<WideStatesConfig<Element, kWalks, kReverse>>;
    auto& shared = *reinterpret_cast<typename Walk::Shared*>(shared_memory);
    run_state_walk<kWalks>(Walk(params, shared, state_walk_of_warp(warp), blockIdx.x / 2), warp);
  };
  if (reverse) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

}  // namespace tandem::cuda::gla
