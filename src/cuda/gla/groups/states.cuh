// gla_group_states_kernel: the states at both ends of every pair of chunks, for the gradients of
// grouped heads.
//
// A CTA walks one sequence for up to four heads that share q and k and a part of 128 columns of K,
// either over k and v from the first token on, or over q and do from the last token back, in chunks
// of 64 tokens. It leaves the states that it has where a pair of chunks begins along the walk,
// rounded to 16 bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a pair
//   dSt = the same of do and q (parts/decay.cuh)     behind a pair, without the next token's decay
//
// Role    threads              registers  work
//   load  warp 0, one thread          72  k and every head's v of later chunks by TMA (3 stages)
//         warp 1                      72  decay factors of later chunks
//   state a warpgroup per two heads  216  St in registers, out through shared memory, bulk copies
// Shared memory: 218 KB at 128 columns of K.
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: v and do read once (by the other part from the L2), k and q once per four heads (mostly
// from the L2), and two states of 2 K V bytes written per head and pair. Numerics: fp32 states;
// rounded are the decayed V, and what is left behind.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/groups/shared.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

template <class Group, bool kReverseT>
struct GroupStatesConfig : Group {
  static constexpr int kChunk = 64;
  static constexpr bool kReverse = kReverseT;
};

struct GroupStatesShape {
  static constexpr int kHeads = 4;
  static constexpr int kOwnHeads = 2;  // of a warpgroup
  static constexpr int kThreads = 128 * (1 + kHeads / kOwnHeads);
  static constexpr int kMemoryRegisters = 72;
  static constexpr int kStateRegisters = 216;
  static_assert(kMemoryRegisters + kHeads / kOwnHeads * kStateRegisters <= 65536 / 128);
};

template <class Group>
struct GroupStatesShared {
  static constexpr int kStages = 3;
  static constexpr int kHeads = GroupStatesShape::kHeads;
  struct Stage {
    alignas(1024) char k[Group::kTileBytes];
    alignas(1024) char v[kHeads][panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) char states[kHeads][Group::kTileBytes];  // on their way out
  ChunkDecay<64> decay[kStages][kHeads];
  Ring<kStages> input;
};

/// What a CTA walks. Chunks are counted along the walk.
template <class Config>
struct GroupStatesWalk {
  const GroupBackwardParams& params;
  GroupStatesShared<Config>& shared;
  Item item;  // of the first head
  int group;
  int heads;

  using Element = typename Config::Element;
  using Position = RingPosition<GroupStatesShared<Config>::kStages>;
  static constexpr int kHeads = GroupStatesShape::kHeads;
  static constexpr int kOwnHeads = GroupStatesShape::kOwnHeads;
  using States = float[kOwnHeads][Config::kKeyDim / 2];

  __device__ GroupStatesWalk(const GroupBackwardParams& params, GroupStatesShared<Config>& shared,
                             unsigned index)
      : params(params), shared(shared) {
    const GlaForwardProblem& problem = params.problem.forward;
    const unsigned sets = (params.share + kHeads - 1) / kHeads;
    const unsigned of_set = index / sets, set = index - of_set * sets;
    group = static_cast<int>(of_set % problem.HQ);
    heads = min(params.share - static_cast<int>(set) * kHeads, kHeads);
    item.head = group * params.share + static_cast<int>(set) * kHeads;
    set_sequence(item, problem, of_set / problem.HQ);
  }

  __device__ std::int64_t sequence_head(int head) const {
    return std::int64_t{item.batch} * params.problem.forward.H + item.head + head;
  }
  __device__ const float* begin_state(int head) const {
    const GlaForwardProblem& problem = params.problem.forward;
    const float* states = Config::kReverse ? params.problem.d_final_state : problem.initial_state;
    return states == nullptr ? nullptr : states + sequence_head(head) * params.state_stride;
  }
  __device__ float* end_state(int head) const {
    float* states = Config::kReverse ? params.problem.d_initial_state : nullptr;
    return states == nullptr ? nullptr : states + sequence_head(head) * params.state_stride;
  }
  /// Chunks that come before some pair, or all of them.
  __device__ int chunks() const {
    if (end_state(0) != nullptr) return params.chunks;
    return max(params.chunks - (Config::kReverse || params.chunks % 2 == 0 ? 2 : 1), 0);
  }
  /// Whether a pair begins with a chunk. The last pair in time may be one chunk.
  __device__ bool begins_pair(int chunk) const {
    return chunk == 0 || (Config::kReverse ? chunk + params.chunks : chunk) % 2 == 0;
  }

  __device__ void load() const {
    const CUtensorMap& k_map = Config::kReverse ? params.q_map : params.k_map;
    const CUtensorMap& v_map = Config::kReverse ? params.d_o_map : params.v_map;
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      TileCoordinate from{0, group, item.chunk_begin<Config>(chunk), item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(Config::kTileBytes + heads * panel_bytes(64));
      load_tile(k_map, full, stage.k, Config::kKeyDim, from);
      for (int head = 0; head < heads; ++head) {
        from.head = item.head + head;
        load_panel(v_map, full, stage.v[head], from);
      }
    }
  }

  /// Loads a chunk's natural-log decays, 0 where there is no token.
  __device__ LogDecays load_decays(int chunk, int head) const {
    const DecayTensor& decay = params.problem.forward.log_decay;
    const float* from =
        decay.data + item.batch * decay.batch_stride + (item.head + head) * decay.head_stride;
    const int begin = item.chunk_begin<Config>(chunk);
    const auto of_token = [&](int offset) {
      const int time = begin + offset;
      const bool inside = chunk < chunks() && head < heads && time < item.length;
      return decay.data != nullptr && inside ? from[time * decay.time_stride] : 0.0f;
    };
    const int token = 2 * (threadIdx.x % 32);
    return {{of_token(token), of_token(token + 1)}, Config::kReverse ? of_token(64) : 0.0f};
  }
  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decays() const {
    LogDecays own[kHeads], next[kHeads];
#pragma unroll
    for (int head = 0; head < kHeads; ++head) own[head] = load_decays(0, head);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
#pragma unroll
      for (int head = 0; head < kHeads; ++head) next[head] = load_decays(chunk + 1, head);
      shared.input.wait_empty(at);
#pragma unroll
      for (int head = 0; head < kHeads; ++head) {
        compute_chunk_decay<Config::kReverse>(own[head], params.problem.forward.scale,
                                              shared.decay[at.stage][head]);
        own[head] = next[head];
      }
      shared.input.full[at.stage].arrive();
    }
  }

  /// Stores the states where a pair begins.
  __device__ void keep(const States& states, int pair, int first) const {
    const bool stores = threadIdx.x % 128 == 0;
    if (stores) wait_stores_read();
    sync_warpgroup(1 + first / kOwnHeads);
#pragma unroll
    for (int i = 0; i < kOwnHeads; ++i) put_rows<Element>(states[i], shared.states[first + i]);
    fence_shared_for_async_proxy();
    sync_warpgroup(1 + first / kOwnHeads);
    if (!stores) return;
    char* const to = static_cast<char*>(Config::kReverse ? params.state_gradients : params.states);
    const int in_time = Config::kReverse ? params.pairs - 1 - pair : pair;
    for (int head = first; head < min(first + kOwnHeads, heads); ++head) {
      const std::int64_t index = sequence_head(head) * params.pairs + in_time;
      cute::SM90_BULK_COPY_S2G::copy(shared.states[head], to + index * Config::kTileBytes,
                                     Config::kTileBytes);
    }
    cute::tma_store_arrive();
  }

  /// Walks heads `first` and, if there is one, `first + 1`: else its panels hold anything, and what
  /// comes of them is not stored.
  __device__ void walk(int first) const {
    const GlaForwardProblem& problem = params.problem.forward;
    const StateTile tile{problem.K, problem.V, {problem.V, 1}, 0, 0};
    States states = {};
#pragma unroll
    for (int i = 0; i < kOwnHeads; ++i) {
      if (first + i < heads && begin_state(first + i) != nullptr) {
        load_state(states[i], begin_state(first + i), tile);
      }
    }
    Position at;
    const int end = chunks();
    for (int chunk = 0; chunk < end; ++chunk, at.advance()) {
      if (begins_pair(chunk)) keep(states, (chunk + 1) / 2, first);
      const auto& stage = shared.stages[at.stage];
      std::uint32_t values[kOwnHeads][4][4];
      shared.input.wait_full(at);
#pragma unroll
      for (int i = 0; i < kOwnHeads; ++i) {
        const auto& decay = shared.decay[at.stage][first + i];
        load_decayed_values<Element, 0, 4>(values[i], stage.v[first + i], decay.to_state);
        const float factor = decay.state_to_state;
#pragma unroll
        for (float& value : states[i]) value *= factor;
      }
#pragma unroll
      for (int i = 0; i < kOwnHeads; ++i) fence_registers(states[i]);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kOwnHeads; ++i) add_tokens<Element>(states[i], values[i], stage.k);
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kOwnHeads; ++i) {
        hold_operand(values[i]);
        fence_registers(states[i]);
      }
      shared.input.empty[at.stage].arrive();
    }
    if (end_state(first) == nullptr && params.pairs > 0) keep(states, params.pairs - 1, first);
#pragma unroll
    for (int i = 0; i < kOwnHeads; ++i) {
      if (first + i < heads && end_state(first + i) != nullptr) {
        Item own = item;
        own.head += first + i;
        const float factor = first_factor(problem.log_decay, own);
#pragma unroll
        for (float& value : states[i]) value *= factor;
        store_state(states[i], end_state(first + i), tile);
      }
    }
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

template <class Group, int kParts>
__global__ __launch_bounds__(GroupStatesShape::kThreads, 1) void gla_group_states_kernel(
    const __grid_constant__ GroupBackwardParts parts) {
  extern __shared__ __align__(1024) char shared_memory[];
  // Directions are innermost, then parts, which read the same v and d_o.
  const bool reverse = blockIdx.x % 2 == 1;
  const GroupBackwardParams& params = parts.of[blockIdx.x / 2 % kParts];
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 32) {
    prefetch_tensor_map(reverse ? params.q_map : params.k_map);
    prefetch_tensor_map(reverse ? params.d_o_map : params.v_map);
  }
  const auto run = [&]<bool kReverse>() {
    using Config = GroupStatesConfig<Group, kReverse>;
    auto& shared = *reinterpret_cast<GroupStatesShared<Config>*>(shared_memory);
    const GroupStatesWalk<Config> walk(params, shared, blockIdx.x / 2 / kParts);
    constexpr int kOwn = GroupStatesShape::kOwnHeads;
    if (threadIdx.x == 0) {
      shared.input.init(1 + 32, 128 * ((walk.heads + kOwn - 1) / kOwn));
      fence_barriers_initialised();
    }
    follow_stream();
    __syncthreads();
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<GroupStatesShape::kMemoryRegisters>();
      if (threadIdx.x == 0) walk.load();
      if (warp == 1) walk.prepare_decays();
    } else {
      cutlass::arch::warpgroup_reg_alloc<GroupStatesShape::kStateRegisters>();
      const int first = kOwn * (warp / 4 - 1);
      if (first < walk.heads) walk.walk(first);
    }
  };
  if (reverse) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

}  // namespace tandem::cuda::gla
