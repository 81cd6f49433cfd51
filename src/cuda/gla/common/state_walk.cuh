// What the walks for the states at both ends of pairs of chunks (groups/states.cuh) and of spans
// (wide/states.cuh) have in common: a warpgroup walks one head, 64 columns of V and Config::kKeyDim
// of K, in chunks of 64 tokens, in either direction, and leaves its state where the caller says.
#pragma once

#include <cutlass/arch/reg_reconfig.h>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/entry_state.cuh"
#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/state_walks.h"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

/// A warpgroup that prepares chunks, and one for each walk of a CTA, which share the tiles of k.
template <int kWalks>
struct StateWalkShape {
  static constexpr int kThreads = 128 * (1 + kWalks);
  static constexpr int kCtas = state_walks_at_once(kWalks) / kWalks;  // per multiprocessor
  static constexpr int kMemoryRegisters = kWalks == 1 ? 56 : 32;
  static constexpr int kStateRegisters = kWalks == 1 ? 200 : 112;
  static_assert(kMemoryRegisters + kWalks * kStateRegisters <=
                65536 / kCtas / kThreads / 8 * 8 * (1 + kWalks));
};

/// What a walk has of v, or d_o: a head, and the first of 64 columns of V.
struct StateColumns {
  int head;
  int column;
};

/// Decay factors of a chunk, to the state after it along the walk.
struct alignas(16) StateDecay {
  float of_token[64];
  float of_state;
};

template <int kKeyDim, int kWalks>
struct StateWalkShared {
  static constexpr int kStages = 3;
  using Tile = char[kKeyDim / kPanelColumns * panel_bytes(64)];
  struct Stage {
    alignas(1024) Tile k;
    alignas(1024) char v[kWalks][panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) Tile states[kWalks];  // on their way out
  StateDecay decay[kStages][kWalks];
  Ring<kStages> input;

  /// One thread, before a CTA-wide barrier. `walks`: that the CTA has.
  __device__ void init(int walks) {
    input.init(1 + 32 * walks, 128 * walks);
    fence_barriers_initialised();
  }
};

/// One of a CTA's walks. Chunks are counted along it. `item` has the head, and the first of the
/// columns of V.
template <class Config, class Walk>
struct StateWalk {
  using Element = typename Config::Element;
  using Shared = StateWalkShared<Config::kKeyDim, Config::kWalks>;
  using Position = RingPosition<Shared::kStages>;
  using State = float[Config::kKeyDim / 2];  // St, 64 of V
  static constexpr int kTileBytes = sizeof(typename Shared::Tile);

  Shared& shared;
  Item item;
  int own;        // of the CTA's walks
  int walks = 1;  // of the CTA

  __device__ StateWalk(Shared& shared, int own) : shared(shared), own(own) {}

  __device__ const GlaForwardProblem& problem() const {
    return static_cast<const Walk&>(*this).params.problem.forward;
  }

  /// Those that are walked.
  __device__ int chunks() const { return static_cast<const Walk&>(*this).chunks(); }
  __device__ int all_chunks() const { return item.template chunks<Config>(); }

  /// Starts copies of a chunk of k, or q, and of v, or d_o, of all walks. One thread.
  __device__ void load(Position at, int chunk, const CUtensorMap& k_map, const CUtensorMap& v_map,
                       int key_head, int first_key) const {
    auto& stage = shared.stages[at.stage];
    Barrier& full = shared.input.full[at.stage];
    TileCoordinate from{first_key, key_head, item.chunk_begin<Config>(chunk), item.batch};
    full.arrive_and_expect(kTileBytes + walks * panel_bytes(64));
    load_tile(k_map, full, stage.k, Config::kKeyDim, from);
    for (int walk = 0; walk < walks; ++walk) {
      const StateColumns of = static_cast<const Walk&>(*this).columns_of(walk);
      load_panel(v_map, full, stage.v[walk], {of.column, of.head, from.time, item.batch});
    }
  }

  /// Makes the decay factors of all chunks; the first walk's warp has them copied in, too. A warp
  /// of the warpgroup that prepares.
  __device__ void prepare() const {
    const DecayTensor& decay = problem().log_decay;
    const int end = item.begin + item.length, lane_token = 2 * (threadIdx.x % 32);
    constexpr int kStep = Config::kReverse ? -64 : 64;
    int time = item.template chunk_begin<Config>(0) + lane_token;
    const float* from = decay.data + item.batch * decay.batch_stride +
                        item.head * decay.head_stride + time * decay.time_stride;
    // Natural-log decays, 0 where the walk has no token.
    const auto load_decays = [&](bool exists) {
      const auto of_token = [&](int offset) {
        const bool inside = decay.data != nullptr && exists && time + offset < end;
        return inside ? from[offset * decay.time_stride] : 0.0f;
      };
      const LogDecays loaded{{of_token(0), of_token(1)},
                             Config::kReverse ? of_token(64 - lane_token) : 0.0f};
      time += kStep;
      from += kStep * decay.time_stride;
      return loaded;
    };
    LogDecays decays = load_decays(chunks() > 0);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      shared.input.wait_empty(at);
      // why elected: ptxas then knows that one thread copies, and makes no loop around each copy.
      if (own == 0 && cute::elect_one_sync()) static_cast<const Walk&>(*this).load(at, chunk);
      const LogDecays next = load_decays(chunk + 1 < chunks());
      by_strength(any_strong(decays.own), [&]<bool kStrong> {
        store_factors(ChunkSums<kStrong>(decays.own), decays.behind, shared.decay[at.stage][own]);
      });
      decays = next;
      shared.input.full[at.stage].arrive();
    }
  }
  /// As store_chunk_decay (parts/decay.cuh), which says why, those factors that enter the state.
  template <bool kStrong>
  __device__ void store_factors(const ChunkSums<kStrong>& sums, float behind,
                                StateDecay& out) const {
    float2 of_token;
    auto through = sums.total;
    if constexpr (Config::kReverse) {
      const float scale = problem().scale;
      of_token = {scale * (sums.x - sums.first).factor(), scale * (sums.y - sums.first).factor()};
      through = sums.total + LogSum<kStrong>::of(behind) - sums.first;
    } else {
      of_token = {(sums.total - sums.x).factor(), (sums.total - sums.y).factor()};
    }
    const int lane = threadIdx.x % 32;
    *reinterpret_cast<float2*>(&out.of_token[2 * lane]) = of_token;
    if (lane == 0) out.of_state = through.factor();
  }

  /// Takes a chunk into the state. The warpgroup that has it, as below.
  __device__ void walk_chunk(State& state, Position at) const {
    const auto& stage = shared.stages[at.stage];
    std::uint32_t values[4][4];
    shared.input.wait_full(at);
    const auto& decay = shared.decay[at.stage][own];
    load_decayed_values<Element, 0, 4>(values, stage.v[own], decay.of_token);
    scale(state, decay.of_state);
    fence_registers(state);
    wgmma_begin();
    add_tokens<Element>(state, values, stage.k);
    wgmma_wait<0>();
    hold_operand(values);
    fence_registers(state);
    shared.input.empty[at.stage].arrive();
  }
  static __device__ void scale(State& state, float factor) {
#pragma unroll
    for (float& value : state) value *= factor;
  }

  /// Stores the state, rounded, as it lies in shared memory.
  __device__ void leave(const State& state, char* to) const {
    const bool stores = threadIdx.x % 128 == 0;
    char* const tile = shared.states[own];
    if (stores) wait_stores_read();
    sync_warpgroup(1 + own);
    put_rows<Element>(state, tile);
    fence_shared_for_async_proxy();
    sync_warpgroup(1 + own);
    if (stores) {
      cute::SM90_BULK_COPY_S2G::copy(tile, to, kTileBytes);
      cute::tma_store_arrive();
    }
  }

  /// What the walk's state is of `keys` rows of a head's in fp32.
  __device__ StateTile tile(int keys) const {
    return {keys, problem().V, {problem().V, 1}, 0, item.first_column};
  }
  /// Stores the end of a reverse walk, with the decay that it leaves to be applied.
  __device__ void store_end(State& state, float* to, int keys) const {
    scale(state, first_factor(problem().log_decay, item));
    store_state(state, to, tile(keys));
  }
};

/// Of a CTA's walks, the one that a warp has to do with.
__device__ inline int state_walk_of_warp(int warp) { return warp < 4 ? warp : warp / 4 - 1; }

/// What a warp of a CTA does for its walk.
template <int kWalks, class Walk>
__device__ void run_state_walk(const Walk& walk, int warp) {
  using Shape = StateWalkShape<kWalks>;
  if (threadIdx.x == 0) walk.shared.init(walk.walks);
  follow_stream();
  __syncthreads();
  const bool exists = walk.own < walk.walks;
  if (warp < 4) {
    cutlass::arch::warpgroup_reg_dealloc<Shape::kMemoryRegisters>();
    if (exists) walk.prepare();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Shape::kStateRegisters>();
    if (exists) walk.walk();
  }
}

}  // namespace tandem::cuda::gla
