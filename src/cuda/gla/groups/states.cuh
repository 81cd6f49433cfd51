// gla_group_states_kernel: the states at both ends of every pair of chunks, for the gradients of
// grouped heads.
//
// A CTA walks one segment of a sequence for a member of a group and a part of 128 columns of K,
// either over k and v from the first token on, or over q and do from the last token back, in chunks
// of 64 tokens. It leaves the states that it has where a pair of chunks begins along the walk,
// rounded to 16 bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a pair
//   dSt = the same of do and q (parts/decay.cuh)     behind a pair, without the next token's decay,
//                                                    if that is of the segment
//
// Role    threads             registers  work
//   load  warp 0, one thread         56  k and v of later chunks by TMA (3 stages)
//         warp 1                     56  decay factors of later chunks
//   state warpgroup 1               200  St in registers, out through shared memory, bulk copies
// Shared memory: 90 KB at 128 columns of K, for two CTAs an SM. why not several members a CTA,
// which share k: it comes from the L2 anyhow, and each would wait for the others' products.
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: v and do read once (by the other part from the L2), k and q once per member (mostly from
// the L2), and two states of 2 K V bytes written per head and pair. Numerics: fp32 states;
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
  static constexpr int kThreads = 256;
  static constexpr int kCtas = kGroupWalksAtOnce;
  static constexpr int kMemoryRegisters = 56;
  static constexpr int kStateRegisters = 200;
  static_assert(kMemoryRegisters + kStateRegisters <= 65536 / kCtas / kThreads / 8 * 8 * 2);
};

template <class Group>
struct GroupStatesShared {
  static constexpr int kStages = 3;
  struct Stage {
    alignas(1024) char k[Group::kTileBytes];
    alignas(1024) char v[panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) char state[Group::kTileBytes];  // on its way out
  ChunkDecay<64> decay[kStages];
  Ring<kStages> input;
};

/// What a CTA walks. Chunks are counted along the walk.
template <class Config>
struct GroupStatesWalk {
  const GroupBackwardParams& params;
  GroupStatesShared<Config>& shared;
  Item item;
  int segment;
  int group;  // of the batch
  GroupMember member;
  int first_state;  // of the member and the segment

  using Element = typename Config::Element;
  using Position = RingPosition<GroupStatesShared<Config>::kStages>;
  using State = float[Config::kKeyDim / 2];

  __device__ GroupStatesWalk(const GroupBackwardParams& params, GroupStatesShared<Config>& shared,
                             unsigned index)
      : params(params), shared(shared) {
    const GlaForwardProblem& problem = params.problem.forward;
    const unsigned of_segment = index / params.members;
    const int in_group = static_cast<int>(index - of_segment * params.members);
    const unsigned of_group = of_segment / params.slab.segments;
    segment =
        params.slab.first_segment + static_cast<int>(of_segment - of_group * params.slab.segments);
    const unsigned of_all = of_group + params.slab.first_group;
    group = static_cast<int>(of_all % problem.HQ);
    set_sequence(item, problem, of_all / problem.HQ);
    keep_chunks<Config>(item, segment * params.segment_chunks,
                        (segment + 1) * params.segment_chunks);
    member = find_member(params, group, in_group);
    item.head = member.head;
    first_state = (static_cast<int>(of_group) * params.members + in_group) * params.slab_pairs +
                  (segment - params.slab.first_segment) * (params.segment_chunks / 2);
  }

  __device__ std::int64_t sequence_head() const {
    return std::int64_t{item.batch} * params.problem.forward.H + member.head;
  }
  __device__ const float* begin_state() const {
    const float* states = Config::kReverse ? params.entry_gradients : params.entry_states;
    return states == nullptr
               ? nullptr
               : states + (sequence_head() * params.segments + segment) * params.state_stride;
  }
  __device__ float* end_state() const {
    float* states = Config::kReverse && segment == 0 ? params.problem.d_initial_state : nullptr;
    return states == nullptr ? nullptr : states + sequence_head() * params.state_stride;
  }
  /// Of the segment.
  __device__ int all_chunks() const { return item.template chunks<Config>(); }
  /// Chunks that come before some pair, or all of them.
  __device__ int chunks() const {
    const int all = all_chunks();
    if (end_state() != nullptr) return all;
    return max(all - (Config::kReverse || all % 2 == 0 ? 2 : 1), 0);
  }
  __device__ int pairs() const { return (all_chunks() + 1) / 2; }

  __device__ void load() const {
    const CUtensorMap& k_map = Config::kReverse ? params.q_map : params.k_map;
    const CUtensorMap& v_map = Config::kReverse ? params.d_o_map : params.v_map;
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      const TileCoordinate from{0, group, item.chunk_begin<Config>(chunk), item.batch};
      shared.input.wait_empty(at);
      full.arrive_and_expect(Config::kTileBytes + panel_bytes(64));
      load_tile(k_map, full, stage.k, Config::kKeyDim, from);
      load_panel(v_map, full, stage.v, {member.column, member.head, from.time, item.batch});
    }
  }

  /// Loads a chunk's natural-log decays, 0 where the segment has no token.
  __device__ LogDecays load_decays(int chunk) const {
    const DecayTensor& decay = params.problem.forward.log_decay;
    const float* from =
        decay.data + item.batch * decay.batch_stride + member.head * decay.head_stride;
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
      compute_chunk_decay<Config::kReverse>(own, params.problem.forward.scale,
                                            shared.decay[at.stage]);
      own = next;
      shared.input.full[at.stage].arrive();
    }
  }

  /// Stores the state where a pair begins.
  __device__ void keep(const State& state, int index) const {
    const bool stores = threadIdx.x % 128 == 0;
    if (stores) wait_stores_read();
    sync_warpgroup(1);
    put_rows<Element>(state, shared.state);
    fence_shared_for_async_proxy();
    sync_warpgroup(1);
    if (!stores) return;
    char* const to = static_cast<char*>(Config::kReverse ? params.state_gradients : params.states);
    cute::SM90_BULK_COPY_S2G::copy(shared.state, to + std::int64_t{index} * Config::kTileBytes,
                                   Config::kTileBytes);
    cute::tma_store_arrive();
  }

  /// What the member's state is of a head's in fp32.
  __device__ StateTile tile() const {
    const GlaForwardProblem& problem = params.problem.forward;
    return {problem.K, problem.V, {problem.V, 1}, 0, member.column};
  }

  __device__ void walk() const {
    State state = {};
    if (begin_state() != nullptr) load_state(state, begin_state(), tile());
    Position at;
    const int end = chunks();
    // Along the walk the last pair in time, which may be one chunk, is a reverse walk's first.
    const int odd = Config::kReverse ? all_chunks() % 2 : 0;
    int kept = first_state + (Config::kReverse ? pairs() - 1 : 0);
    for (int chunk = 0; chunk < end; ++chunk, at.advance()) {
      if (chunk == 0 || (chunk + odd) % 2 == 0) {
        keep(state, kept);
        kept += Config::kReverse ? -1 : 1;
      }
      const auto& stage = shared.stages[at.stage];
      std::uint32_t values[4][4];
      shared.input.wait_full(at);
      const auto& decay = shared.decay[at.stage];
      load_decayed_values<Element, 0, 4>(values, stage.v, decay.to_state);
      const float factor = decay.state_to_state;
#pragma unroll
      for (float& value : state) value *= factor;
      fence_registers(state);
      wgmma_begin();
      add_tokens<Element>(state, values, stage.k);
      wgmma_wait<0>();
      hold_operand(values);
      fence_registers(state);
      shared.input.empty[at.stage].arrive();
    }
    if (end_state() == nullptr && pairs() > 0) keep(state, kept);
    if (end_state() != nullptr) {
      const float factor = first_factor(params.problem.forward.log_decay, item);
#pragma unroll
      for (float& value : state) value *= factor;
      store_state(state, end_state(), tile());
    }
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

template <class Group, int kParts>
__global__
__launch_bounds__(GroupStatesShape::kThreads, GroupStatesShape::kCtas) void gla_group_states_kernel(
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
    if (threadIdx.x == 0) {
      shared.input.init(1 + 32, 128);
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
      walk.walk();
    }
  };
  if (reverse) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

}  // namespace tandem::cuda::gla
