// gla_kept_states_kernel: the state before every pair of chunks, for gla_reverse_kernel.
//
// A CTA walks one segment of a head from its first token on, in chunks of 64 tokens, and leaves the
// state that it has before every pair, rounded to 16 bits:
//   St = 2^G_C St + (Vt 2^(G_C - G_j)) K
//
// Role    threads              work
//   load  warp 0, one thread   k and v of later chunks by TMA
//         warp 1               decay factors of later chunks
//   state a warpgroup for each 64 of V: St in registers, out through shared memory and bulk copies
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: k and v read once and half a tile written per tile read. Numerics: fp32 states; rounded
// are the decayed V, and what is left behind. Shared memory: 197 KB at 128 columns.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/decay_stream.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/reverse/entry_state.cuh"
#include "cuda/gla/reverse/params.h"
#include "cuda/gla/reverse/shared.cuh"
#include "cuda/parts/elect.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

template <class ElementT, int kKeyDimT, int kValueDimT>
struct KeptStatesConfig {
  using Element = ElementT;
  static constexpr int kChunk = 64;
  static constexpr bool kReverse = false;
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
  DecayStream<false>::Buffer log_decays;
  Ring<Config::kStages> input;
};

template <class Config>
struct KeptStatesWalk {
  const ReverseParams& params;
  KeptStatesShared<Config>& shared;
  const ReverseHead head;
  Item item;

  using Element = typename Config::Element;
  using Position = RingPosition<Config::kStages>;

  __device__ KeptStatesWalk(const ReverseParams& params, KeptStatesShared<Config>& shared)
      : params(params), shared(shared), head(params) {
    item.head = head.head;
    set_sequence(item, params.problem.forward, head.batch);
    keep_chunks<Config>(item, head.first, head.first + head.chunks);
  }

  /// Chunks that come before some pair.
  __device__ int chunks() const { return 2 * (head.pairs - 1); }

  __device__ void load() const {
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{0, item.head, item.begin + 64 * chunk, item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(sizeof(stage));
      load_tile(params.k_map, full, stage.k, Config::kKeyDim, from);
      load_tile(params.v_map, full, stage.v, Config::kValueDim, from);
    }
  }

  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decay() const {
    const GlaForwardProblem& problem = params.problem.forward;
    DecayStream<false> decays(shared.log_decays, problem.log_decay, item, item.length, 0, 1);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      const LogDecays own = decays.next();
      shared.input.wait_empty(at);
      compute_chunk_decay<false>(own, problem.scale, shared.decay[at.stage]);
      shared.input.full[at.stage].arrive();
    }
  }

  /// Stores the state before a pair. One state warpgroup, its rows.
  __device__ void keep(const float (&state)[Config::kKeyDim / 2], int pair, int warpgroup) const {
    const bool stores = threadIdx.x % 128 == 0;
    char* const own = shared.states[pair % 2] + warpgroup * panel_bytes(64);
    // The store before the last one has read what is written now.
    if (stores) cute::tma_store_wait<1>();
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
    char* const to = static_cast<char*>(params.states) +
                     (head.index * params.pairs + pair) * Config::kStateBytes +
                     warpgroup * panel_bytes(64);
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
      const int offset = panel * panel_bytes(Config::kValueDim);
      cute::SM90_BULK_COPY_S2G::copy(own + offset, to + offset, panel_bytes(64));
    }
    cute::tma_store_arrive();
  }

  __device__ void walk(int warpgroup) const {
    const GlaForwardProblem& problem = params.problem.forward;
    const float* const entry = params.entry_states == nullptr
                                   ? nullptr
                                   : params.entry_states + head.index * problem.K * problem.V;
    float state[Config::kKeyDim / 2];
    load_entry_state(state, entry, {problem.K, problem.V, {problem.V, 1}, 0, 64 * warpgroup});
    Position at;
    if (head.pairs > 0) keep(state, 0, warpgroup);
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
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
      if (chunk % 2 == 1) keep(state, (chunk + 1) / 2, warpgroup);
    }
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void gla_kept_states_kernel(
    const __grid_constant__ ReverseParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<KeptStatesShared<Config>*>(shared_memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 32) {
    prefetch_tensor_map(params.k_map);
    prefetch_tensor_map(params.v_map);
  }
  if (threadIdx.x == 0) {
    shared.input.init(1 + 32, 128 * Config::kWarpgroups);
    fence_barriers_initialised();
  }
  follow_stream();
  __syncthreads();
  const KeptStatesWalk<Config> walk(params, shared);
  if (warp >= 4) {
    walk.walk(warp / 4 - 1);
  } else if (warp == 1) {
    walk.prepare_decay();
  } else if (elected_of_warp(0)) {
    walk.load();
  }
}

}  // namespace tandem::cuda::gla
