// gla_kept_states_kernel: the state before every pair of chunks, for gla_reverse_kernel, and where
// segments look back the gradient by the state behind each.
//
// A CTA walks one segment of a head from its first token on, in chunks of 64 tokens, and leaves the
// state that it has before every pair, rounded to 16 bits:
//   St = 2^G_C St + (Vt 2^(G_C - G_j)) K
// It begins with an entry state, or looks back: it begins as many chunks earlier as its decays
// remember. Other CTAs then walk from as far behind each segment to its end, and leave dSt there;
// these alone are needed where the forward saved its states:
//   dSt = 2^G_C dSt + (dOt scale 2^G_i) Q
//
// Role    threads              work
//   load  warp 0, one thread   k and v, or q and do, of later chunks by TMA
//         warp 1               decay factors of later chunks
//   state a warpgroup for each 64 of V: St in registers, out through shared memory and bulk copies
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: k and v read once and half a tile written per tile read. Numerics: fp32 states; rounded
// are the decayed V, and what is left behind. Shared memory: 198 KB at 128 columns.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/decay_stream.cuh"
#include "cuda/gla/common/entry_state.cuh"
#include "cuda/gla/common/remembered.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/reverse/params.h"
#include "cuda/gla/reverse/shared.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

template <class ElementT, int kKeyDimT, int kValueDimT, bool kReverseT>
struct KeptStatesConfig {
  using Element = ElementT;
  static constexpr int kChunk = 64;
  static constexpr bool kReverse = kReverseT;
  static constexpr int kKeyDim = kKeyDimT;
  static constexpr int kKeyPanels = kKeyDim / kPanelColumns;
  static constexpr int kValueDim = kValueDimT;
  static constexpr int kWarpgroups = kValueDim / 64;
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  static constexpr int kStages = 4;
  static constexpr int kStateBytes = kKeyPanels * panel_bytes(kValueDim);
};

template <class Config>
struct KeptStatesShared {
  struct Stage {
    alignas(1024) char k[Config::kKeyPanels * panel_bytes(64)];
    alignas(1024) char v[Config::kWarpgroups * panel_bytes(64)];
  };
  Stage stages[Config::kStages];
  alignas(1024) char states[2][Config::kStateBytes];  // one made while the other is stored
  ChunkDecay<64> decay[Config::kStages];
  DecaySumsShared<Config::kThreads, 1> decay_sums;
  int remembered;  // chunks
  alignas(16) DecayStream<Config::kReverse>::Buffer log_decays;
  Ring<Config::kStages> input;
};

template <class Config>
struct KeptStatesWalk {
  const ReverseParams& params;
  KeptStatesShared<Config>& shared;
  const ReverseHead head;
  const CUtensorMap& k_map;
  const CUtensorMap& v_map;
  Item item;
  const float* entry = nullptr;  // the state that the walk begins with, [K,V]; null: 0
  int earlier = 0;               // chunks walked before the segment

  using Element = typename Config::Element;
  using Position = RingPosition<Config::kStages>;

  __device__ KeptStatesWalk(const ReverseParams& params, KeptStatesShared<Config>& shared)
      : params(params),
        shared(shared),
        head(params),
        k_map(Config::kReverse ? params.q_map : params.k_map),
        v_map(Config::kReverse ? params.d_o_map : params.v_map) {
    const GlaForwardProblem& problem = params.problem.forward;
    const std::int64_t size = std::int64_t{problem.K} * problem.V;
    item.head = head.head;
    set_sequence(item, problem, head.batch);
    const int end = head.first + head.chunks;
    if (params.looks_back) {
      // In the order of the walk.
      const int before = Config::kReverse ? params.chunks - end : head.first;
      const float* const begin =
          Config::kReverse ? params.problem.d_final_state : problem.initial_state;
      earlier = before > 0 ? find_earlier(before) : 0;
      if (earlier == before && begin != nullptr) {
        entry = begin + (std::int64_t{head.batch} * problem.H + head.head) * size;
      }
    } else if (params.entry_states != nullptr) {
      entry = params.entry_states + head.index * size;
    }
    keep_chunks<Config>(item, Config::kReverse ? end : head.first - earlier,
                        Config::kReverse ? end + earlier : end);
  }

  /// Finds how many of the `before` chunks before the segment are remembered. All threads.
  __device__ int find_earlier(int before) const {
    constexpr int kFirst = 32 * DecaySumsShared<Config::kThreads, 1>::kFirstWarp;
    if (threadIdx.x >= kFirst) {
      int remembered[1];
      find_remembered<Config>(shared.decay_sums, params.problem.forward.log_decay, item, item.head,
                              {{before - 1, before}}, false, remembered);
      if (threadIdx.x == kFirst) shared.remembered = remembered[0];
    }
    __syncthreads();
    return shared.remembered;
  }

  /// Chunks to walk: to the end of those that come before some pair, or to the segment.
  __device__ int chunks() const { return earlier + (Config::kReverse ? 0 : 2 * (head.pairs - 1)); }

  __device__ void load() const {
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{0, item.head, item.chunk_begin<Config>(chunk), item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(sizeof(stage));
      load_tile(k_map, full, stage.k, Config::kKeyDim, from);
      load_tile(v_map, full, stage.v, Config::kValueDim, from);
    }
  }

  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decay() const {
    const GlaForwardProblem& problem = params.problem.forward;
    DecayStream<Config::kReverse> decays(shared.log_decays, problem.log_decay, item, item.length,
                                         item.chunk_offset<Config>(0), Config::kReverse ? -1 : 1);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      const LogDecays own = decays.next();
      shared.input.wait_empty(at);
      compute_chunk_decay<Config::kReverse>(own, problem.scale, shared.decay[at.stage]);
      shared.input.full[at.stage].arrive();
    }
  }

  /// Stores the state before a pair. One state warpgroup, its rows.
  __device__ void keep(const float (&state)[Config::kKeyDim / 2], int pair, int warpgroup) const {
    const bool stores = threadIdx.x % 128 == 0;
    char* const own = shared.states[pair % 2] + warpgroup * panel_bytes(64);
    // The store before the last one has read what is written now.
    if (stores) cute::tma_store_wait<Config::kKeyPanels>();
    sync_warpgroup(1 + warpgroup);
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      std::uint32_t rounded[4];
      accumulator_to_operand<Element>(state, step, rounded);
      store_rows(own + step / 4 * panel_bytes(Config::kValueDim), step % 4, rounded);
    }
    fence_shared_for_async_proxy();
    sync_warpgroup(1 + warpgroup);
    if (!stores) return;
    TileCoordinate to = head.state(params, pair, 64 * warpgroup);
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel, to.column += kPanelColumns) {
      store_panel(params.states_map, own + panel * panel_bytes(Config::kValueDim), to);
    }
  }

  __device__ void walk(int warpgroup) const {
    const GlaForwardProblem& problem = params.problem.forward;
    const StateTile tile{problem.K, problem.V, {problem.V, 1}, 0, 64 * warpgroup};
    float state[Config::kKeyDim / 2];
    load_entry_state(state, entry, tile);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      const int own = chunk - earlier;  // of the segment
      if (!Config::kReverse && own >= 0 && own % 2 == 0) keep(state, own / 2, warpgroup);
      const auto& stage = shared.stages[at.stage];
      const auto& decay = shared.decay[at.stage];
      shared.input.wait_full(at);
      std::uint32_t values[4][4];
      load_decayed_values<Element, 0, 4>(values, stage.v + warpgroup * panel_bytes(64),
                                         decay.to_state);
      const float factor = decay.state_to_state;
#pragma unroll
      for (float& value : state) value *= factor;
      fence_registers(state);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_rs<Element, Config::kKeyDim, Major::MN>(state, values[step],
                                                      mn_major_descriptor(stage.k, step), true);
      }
      wgmma_commit();
      wgmma_wait<0>();
      hold_operand(values);
      fence_registers(state);
      shared.input.empty[at.stage].arrive();
    }
    if constexpr (Config::kReverse) {
      const float factor = first_factor(problem.log_decay, item);
#pragma unroll
      for (float& value : state) value *= factor;
      store_state(state, params.entry_gradients + head.index * problem.K * problem.V, tile);
    } else {
      if (head.pairs > 0) keep(state, head.pairs - 1, warpgroup);
      if (threadIdx.x % 128 == 0) wait_stores_read();
    }
  }

  __device__ void run() const {
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    if (warp >= 4) {
      walk(warp / 4 - 1);
    } else if (warp == 1) {
      prepare_decay();
    } else if (threadIdx.x == 0) {
      load();
    }
  }
};

template <class Element, int kKeyDim, int kValueDim>
__global__ __launch_bounds__(
    KeptStatesConfig<Element, kKeyDim, kValueDim, false>::kThreads,
    1) void gla_kept_states_kernel(const __grid_constant__ ReverseParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  const auto run = [&]<bool kReverse>() {
    using Config = KeptStatesConfig<Element, kKeyDim, kValueDim, kReverse>;
    auto& shared = *reinterpret_cast<KeptStatesShared<Config>*>(shared_memory);
    if (threadIdx.x == 32) {
      prefetch_tensor_map(kReverse ? params.q_map : params.k_map);
      prefetch_tensor_map(kReverse ? params.d_o_map : params.v_map);
      if (!kReverse) prefetch_tensor_map(params.states_map);
    }
    if (threadIdx.x == 0) {
      shared.input.init(1 + 32, 128 * Config::kWarpgroups);
      fence_barriers_initialised();
    }
    follow_stream();
    __syncthreads();
    KeptStatesWalk<Config>(params, shared).run();
  };
  if (blockIdx.y == 0 && !params.saved_states) {
    run.template operator()<false>();
  } else {
    run.template operator()<true>();
  }
}

}  // namespace tandem::cuda::gla
