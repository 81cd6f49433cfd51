// What the walks for the states at both ends of pairs of chunks (groups/states.cuh) and of spans
// (wide/states.cuh) have in common: a CTA walks one head, 64 columns of V and Config::kKeyDim of K,
// in chunks of 64 tokens, in either direction, and leaves its state where the caller says.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::gla {

/// A warpgroup that loads and one that has the state.
struct StateWalkShape {
  static constexpr int kThreads = 256;
  static constexpr int kCtas = 2;  // per multiprocessor
  static constexpr int kMemoryRegisters = 56;
  static constexpr int kStateRegisters = 200;
  static_assert(kMemoryRegisters + kStateRegisters <= 65536 / kCtas / kThreads / 8 * 8 * 2);
};

template <int kKeyDim>
struct StateWalkShared {
  static constexpr int kStages = 3;
  using Tile = char[kKeyDim / kPanelColumns * panel_bytes(64)];
  struct Stage {
    alignas(1024) Tile k;
    alignas(1024) char v[panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) Tile state;  // on its way out
  ChunkDecay<64> decay[kStages];
  Ring<kStages> input;

  /// One thread, before a CTA-wide barrier.
  __device__ void init() {
    input.init(1 + 32, 128);
    fence_barriers_initialised();
  }
};

/// Chunks are counted along the walk. `item` has the head, and the first of the columns of V.
template <class Config, class Walk>
struct StateWalk {
  using Element = typename Config::Element;
  using Shared = StateWalkShared<Config::kKeyDim>;
  using Position = RingPosition<Shared::kStages>;
  using State = float[Config::kKeyDim / 2];  // St, 64 of V
  static constexpr int kTileBytes = sizeof(typename Shared::Tile);

  Shared& shared;
  Item item;

  __device__ explicit StateWalk(Shared& shared) : shared(shared) {}

  __device__ const GlaForwardProblem& problem() const {
    return static_cast<const Walk&>(*this).params.problem.forward;
  }

  /// Those that are walked.
  __device__ int chunks() const { return static_cast<const Walk&>(*this).chunks(); }
  __device__ int all_chunks() const { return item.template chunks<Config>(); }

  /// Loads chunks of k, or q, and of v, or d_o. One thread.
  __device__ void load(const CUtensorMap& k_map, const CUtensorMap& v_map, int key_head,
                       int first_key) const {
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{first_key, key_head, item.chunk_begin<Config>(chunk), item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(kTileBytes + panel_bytes(64));
      load_tile(k_map, full, stage.k, Config::kKeyDim, from);
      load_panel(v_map, full, stage.v, {item.first_column, item.head, from.time, item.batch});
    }
  }

  /// Loads a chunk's natural-log decays, 0 where the walk has no token.
  __device__ LogDecays load_decays(int chunk) const {
    const DecayTensor& decay = problem().log_decay;
    const float* from =
        decay.data + item.batch * decay.batch_stride + item.head * decay.head_stride;
    const int begin = item.chunk_begin<Config>(chunk), end = item.begin + item.length;
    const auto of_token = [&](int offset) {
      const int time = begin + offset;
      const bool inside = chunk < chunks() && time < end;
      return decay.data != nullptr && inside ? from[time * decay.time_stride] : 0.0f;
    };
    const int token = 2 * (threadIdx.x % 32);
    return {{of_token(token), of_token(token + 1)}, Config::kReverse ? of_token(64) : 0.0f};
  }
  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decays() const {
    LogDecays own = load_decays(0);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      const LogDecays next = load_decays(chunk + 1);
      shared.input.wait_empty(at);
      compute_chunk_decay<Config::kReverse>(own, problem().scale, shared.decay[at.stage]);
      own = next;
      shared.input.full[at.stage].arrive();
    }
  }

  /// Takes a chunk into the state. The warpgroup that has it, as below.
  __device__ void walk_chunk(State& state, Position at) const {
    const auto& stage = shared.stages[at.stage];
    std::uint32_t values[4][4];
    shared.input.wait_full(at);
    const auto& decay = shared.decay[at.stage];
    load_decayed_values<Element, 0, 4>(values, stage.v, decay.to_state);
    scale(state, decay.state_to_state);
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
    if (stores) wait_stores_read();
    sync_warpgroup(1);
    put_rows<Element>(state, shared.state);
    fence_shared_for_async_proxy();
    sync_warpgroup(1);
    if (stores) {
      cute::SM90_BULK_COPY_S2G::copy(shared.state, to, kTileBytes);
      cute::tma_store_arrive();
    }
  }

  /// What the walk's state is of a head's in fp32.
  __device__ StateTile tile(int first_key) const {
    return {problem().K, problem().V, {problem().V, 1}, first_key, item.first_column};
  }
  /// Stores the end of a reverse walk, with the decay that it leaves to be applied.
  __device__ void store_end(State& state, float* to, int first_key) const {
    scale(state, first_factor(problem().log_decay, item));
    store_state(state, to, tile(first_key));
  }
};

}  // namespace tandem::cuda::gla
