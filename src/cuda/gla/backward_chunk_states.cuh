// gla_chunk_states_kernel: the states at both ends of every chunk, for the gradients by chunks.
//
// A CTA walks one sequence of one head at 64 x 64 columns, either over k and v from the first token
// on, or over q and do from the last token back, and leaves the state that it has before each chunk
// of 64 tokens, rounded to 16 bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before chunk c: S_c
//   dSt = the same of do and q (parts/decay.cuh)     behind chunk c, without the next token's decay
//
// Role    threads              work
//   load  warp 0, one thread   both tensors of later chunks by TMA (4 stages)
//         warp 1               decay factors of later chunks
//   state warpgroup 1          St in registers, panels through shared memory and bulk copies
// Shared memory: 91 KB, two CTAs per SM.
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -round, store- -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: k, v, q, do read once and two panels of 8 KB written per chunk; latency binds where heads
// are few. Numerics: fp32 states; rounded are the decayed V, and what is left behind.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/backward_chunks.h"
#include "cuda/gla/decay_stream.cuh"
#include "cuda/gla/state_elements.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

template <class ElementT, bool kReverseT>
struct ChunkStatesConfig {
  using Element = ElementT;
  static constexpr int kChunk = 64;
  static constexpr bool kReverse = kReverseT;
};

struct ChunkStatesShared {
  static constexpr int kStages = 4;
  static constexpr int kPanels = 3;  // one being written, one being read, one in between
  struct Stage {
    alignas(1024) char k[panel_bytes(64)];
    alignas(1024) char v[panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) char panels[kPanels][panel_bytes(64)];
  ChunkDecay<64> decay[kStages];
  DecayStream<false>::Buffer log_decays;
  Ring<kStages> input;
};

/// What a CTA walks.
template <class Config>
struct ChunkStatesWalk {
  const GlaForwardProblem& problem;
  const CUtensorMap& k_map;
  const CUtensorMap& v_map;
  Item item;     // initial_state and final_state where the walk begins and ends
  char* panels;  // of the item's first chunk in time

  static constexpr std::int64_t kPanelBytes = panel_bytes(64);

  __device__ ChunkStatesWalk(const ChunkBackwardParams& params, std::int64_t sequence_head)
      : problem(params.problem.forward),
        k_map(Config::kReverse ? params.q_map : params.k_map),
        v_map(Config::kReverse ? params.d_o_map : params.v_map) {
    const GlaBackwardProblem& backward = params.problem;
    item.head = static_cast<int>(sequence_head % problem.H);
    set_sequence(item, problem, sequence_head / problem.H);
    const std::int64_t state = sequence_head * problem.K * problem.V;
    const float* initial = Config::kReverse ? backward.d_final_state : problem.initial_state;
    if (initial != nullptr) item.initial_state = initial + state;
    if (Config::kReverse && backward.d_initial_state != nullptr) {
      item.final_state = backward.d_initial_state + state;
    }
    panels = static_cast<char*>(Config::kReverse ? params.state_gradients : params.states) +
             sequence_head * params.chunks * kPanelBytes;
  }

  __device__ StateTile tile() const { return {problem.K, problem.V, {problem.V, 1}, 0, 0}; }

  __device__ void load(ChunkStatesShared& shared) const {
    Ring<ChunkStatesShared::kStages>::Position at;
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{0, item.head, item.chunk_begin<Config>(chunk), item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(2 * kPanelBytes);
      load_panel(k_map, full, stage.k, from);
      load_panel(v_map, full, stage.v, from);
    }
  }

  /// One warp.
  __device__ void prepare_decay(ChunkStatesShared& shared) const {
    Ring<ChunkStatesShared::kStages>::Position at;
    DecayStream<Config::kReverse> decays(shared.log_decays, problem.log_decay, item, item.length,
                                         item.chunk_offset<Config>(0), Config::kReverse ? -1 : 1);
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk, at.advance()) {
      const LogDecays own = decays.next();
      shared.input.wait_empty(at);
      compute_chunk_decay<Config::kReverse>(own, problem.scale, shared.decay[at.stage]);
      shared.input.full[at.stage].arrive();
    }
  }

  __device__ void walk(ChunkStatesShared& shared) const {
    using Element = typename Config::Element;
    constexpr int kSteps = Config::kChunk / 16;
    const bool stores = threadIdx.x % 128 == 0;
    float state[32] = {};
    if (item.initial_state != nullptr) load_state(state, item.initial_state, tile());
    Ring<ChunkStatesShared::kStages>::Position at;
    int panel_index = 0;
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk, at.advance()) {
      char* panel = shared.panels[panel_index];
      panel_index = panel_index + 1 < ChunkStatesShared::kPanels ? panel_index + 1 : 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t rounded[4];
        accumulator_to_operand<Element>(state, step, rounded);
        store_rows(panel, step, rounded);
      }
      fence_shared_for_async_proxy();
      // why here: behind this barrier others write to the panel of the last but one store.
      if (stores) cute::tma_store_wait<1>();
      sync_warpgroup(1);
      if (stores) {
        const int place = item.chunk_offset<Config>(chunk) / Config::kChunk;
        cute::SM90_BULK_COPY_S2G::copy(panel, panels + place * kPanelBytes, kPanelBytes);
        cute::tma_store_arrive();
      }

      const auto& stage = shared.stages[at.stage];
      const auto& decay = shared.decay[at.stage];
      shared.input.wait_full(at);
      std::uint32_t values[kSteps][4];
      load_decayed_values<Element, 0, kSteps>(values, stage.v, decay.to_state);
      const float factor = decay.state_to_state;
#pragma unroll
      for (float& value : state) value *= factor;
      fence_registers(state);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        wgmma_rs<Element, 64, Major::MN>(state, values[step], mn_major_descriptor(stage.k, step),
                                         true);
      }
      wgmma_commit();
      wgmma_wait<0>();
      fence_registers(state);
      shared.input.empty[at.stage].arrive();
    }
    if (item.final_state != nullptr) {
      const float factor = first_factor(problem.log_decay, item);
#pragma unroll
      for (float& value : state) value *= factor;
      store_state(state, item.final_state, tile());
    }
    if (stores) wait_stores_read();
  }
};

template <class Element>
__global__ __launch_bounds__(256, 2) void gla_chunk_states_kernel(
    const __grid_constant__ ChunkBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<ChunkStatesShared*>(shared_memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    shared.input.init(1 + 32, 128);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();

  const auto run = [&]<bool kReverse>() {
    const ChunkStatesWalk<ChunkStatesConfig<Element, kReverse>> walk(params, blockIdx.x / 2);
    if (warp >= 4) {
      walk.walk(shared);
    } else if (warp == 1) {
      walk.prepare_decay(shared);
    } else if (threadIdx.x == 0) {
      walk.load(shared);
    }
  };
  if (blockIdx.x % 2 == 0) {
    run.template operator()<false>();
  } else {
    run.template operator()<true>();
  }
}

}  // namespace tandem::cuda
