// gla_group_states_kernel: the states at both ends of every pair of chunks, for the gradients of
// grouped heads.
//
// A CTA walks one segment of a sequence for up to four members of a group and a part of 128 columns
// of K, either over k and v from the first token on, or over q and do from the last token back, in
// chunks of 64 tokens. It leaves the states that it has where a pair of chunks begins along the
// walk, rounded to 16 bits:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a pair
//   dSt = the same of do and q (parts/decay.cuh)     behind a pair, without the next token's decay,
//                                                    if that is of the segment
//
// Role    threads              registers  work
//   load  warp 0, one thread          72  k and every member's v of later chunks by TMA (3 stages)
//         warp 1                      72  decay factors of later chunks
//   state a warpgroup per two members 216  St in registers, out through shared memory, bulk copies
// Shared memory: 218 KB at 128 columns of K.
//
//   load  ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state -round, store- -decay V- =V K=   -decay V- =V K=
// load waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: v and do read once (by the other part from the L2), k and q once per four members (mostly
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
  static constexpr int kMembers = kGroupWalkMembers;
  static constexpr int kOwnMembers = 2;  // of a warpgroup
  static constexpr int kThreads = 128 * (1 + kMembers / kOwnMembers);
  static constexpr int kMemoryRegisters = 72;
  static constexpr int kStateRegisters = 216;
  static_assert(kMemoryRegisters + kMembers / kOwnMembers * kStateRegisters <=
                65536 / kThreads / 8 * 8 * (kThreads / 128));
};

template <class Group>
struct GroupStatesShared {
  static constexpr int kStages = 3;
  static constexpr int kMembers = GroupStatesShape::kMembers;
  struct Stage {
    alignas(1024) char k[Group::kTileBytes];
    alignas(1024) char v[kMembers][panel_bytes(64)];
  };
  Stage stages[kStages];
  alignas(1024) char states[kMembers][Group::kTileBytes];  // on their way out
  ChunkDecay<64> decay[kStages][kMembers];
  Ring<kStages> input;
};

/// What a CTA walks. Chunks are counted along the walk.
template <class Config>
struct GroupStatesWalk {
  const GroupBackwardParams& params;
  GroupStatesShared<Config>& shared;
  Item item;  // but for the head
  int segment;
  int group;  // of the batch
  int first_member;
  int members;
  int first_state;  // of the first member and the segment

  using Element = typename Config::Element;
  using Position = RingPosition<GroupStatesShared<Config>::kStages>;
  static constexpr int kMembers = GroupStatesShape::kMembers;
  static constexpr int kOwnMembers = GroupStatesShape::kOwnMembers;
  using States = float[kOwnMembers][Config::kKeyDim / 2];

  __device__ GroupStatesWalk(const GroupBackwardParams& params, GroupStatesShared<Config>& shared,
                             unsigned index)
      : params(params), shared(shared) {
    const GlaForwardProblem& problem = params.problem.forward;
    const unsigned sets = (params.members + kMembers - 1) / kMembers;
    const unsigned of_set = index / sets, of_segment = of_set / params.slab.segments;
    first_member = static_cast<int>(index - of_set * sets) * kMembers;
    members = min(params.members - first_member, kMembers);
    segment =
        params.slab.first_segment + static_cast<int>(of_set - of_segment * params.slab.segments);
    const unsigned of_all = of_segment + params.slab.first_group;
    group = static_cast<int>(of_all % problem.HQ);
    set_sequence(item, problem, of_all / problem.HQ);
    keep_chunks<Config>(item, segment * params.segment_chunks,
                        (segment + 1) * params.segment_chunks);
    first_state =
        (static_cast<int>(of_segment) * params.members + first_member) * params.slab_pairs +
        (segment - params.slab.first_segment) * (params.segment_chunks / 2);
  }

  __device__ GroupMember member_at(int member) const {
    return find_member(params, group, first_member + member);
  }
  __device__ std::int64_t sequence_head(int member) const {
    return std::int64_t{item.batch} * params.problem.forward.H + member_at(member).head;
  }
  __device__ const float* begin_state(int member) const {
    const float* states = Config::kReverse ? params.entry_gradients : params.entry_states;
    return states == nullptr
               ? nullptr
               : states + (sequence_head(member) * params.segments + segment) * params.state_stride;
  }
  __device__ float* end_state(int member) const {
    float* states = Config::kReverse && segment == 0 ? params.problem.d_initial_state : nullptr;
    return states == nullptr ? nullptr : states + sequence_head(member) * params.state_stride;
  }
  /// Of the segment.
  __device__ int all_chunks() const { return item.template chunks<Config>(); }
  /// Chunks that come before some pair, or all of them.
  __device__ int chunks() const {
    const int all = all_chunks();
    if (end_state(0) != nullptr) return all;
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
      full.arrive_and_expect(Config::kTileBytes + members * panel_bytes(64));
      load_tile(k_map, full, stage.k, Config::kKeyDim, from);
      for (int member = 0; member < members; ++member) {
        const GroupMember of = member_at(member);
        load_panel(v_map, full, stage.v[member],
                   {of.column, of.head, item.chunk_begin<Config>(chunk), item.batch});
      }
    }
  }

  /// Loads a chunk's natural-log decays, 0 where the segment has no token.
  __device__ LogDecays load_decays(int chunk, int member) const {
    const DecayTensor& decay = params.problem.forward.log_decay;
    const float* from =
        decay.data + item.batch * decay.batch_stride + member_at(member).head * decay.head_stride;
    const int begin = item.chunk_begin<Config>(chunk), end = item.begin + item.length;
    const auto of_token = [&](int offset) {
      const int time = begin + offset;
      const bool inside = chunk < chunks() && member < members && time < end;
      return decay.data != nullptr && inside ? from[time * decay.time_stride] : 0.0f;
    };
    const int token = 2 * (threadIdx.x % 32);
    return {{of_token(token), of_token(token + 1)}, Config::kReverse ? of_token(64) : 0.0f};
  }
  /// Makes the decay factors of all chunks. All lanes of one warp.
  __device__ void prepare_decays() const {
    LogDecays own[kMembers], next[kMembers];
#pragma unroll
    for (int i = 0; i < kMembers; ++i) own[i] = load_decays(0, i);
    Position at;
    for (int chunk = 0; chunk < chunks(); ++chunk, at.advance()) {
#pragma unroll
      for (int i = 0; i < kMembers; ++i) next[i] = load_decays(chunk + 1, i);
      shared.input.wait_empty(at);
#pragma unroll
      for (int i = 0; i < kMembers; ++i) {
        compute_chunk_decay<Config::kReverse>(own[i], params.problem.forward.scale,
                                              shared.decay[at.stage][i]);
        own[i] = next[i];
      }
      shared.input.full[at.stage].arrive();
    }
  }

  /// Stores the states where a pair begins: number `index`, were they the first member's.
  __device__ void keep(const States& states, int index, int first) const {
    const bool stores = threadIdx.x % 128 == 0;
    if (stores) wait_stores_read();
    sync_warpgroup(1 + first / kOwnMembers);
#pragma unroll
    for (int i = 0; i < kOwnMembers; ++i) put_rows<Element>(states[i], shared.states[first + i]);
    fence_shared_for_async_proxy();
    sync_warpgroup(1 + first / kOwnMembers);
    if (!stores) return;
    char* const to = static_cast<char*>(Config::kReverse ? params.state_gradients : params.states);
    for (int member = first; member < min(first + kOwnMembers, members); ++member) {
      const std::int64_t of_member = index + member * params.slab_pairs;
      cute::SM90_BULK_COPY_S2G::copy(shared.states[member], to + of_member * Config::kTileBytes,
                                     Config::kTileBytes);
    }
    cute::tma_store_arrive();
  }

  /// What a member's state is of a head's in fp32.
  __device__ StateTile tile_of(int member) const {
    const GlaForwardProblem& problem = params.problem.forward;
    return {problem.K, problem.V, {problem.V, 1}, 0, member_at(member).column};
  }

  /// Walks members `first` and, if there is one, `first + 1`: else its panels hold anything, and
  /// what comes of them is not stored.
  __device__ void walk(int first) const {
    States states = {};
#pragma unroll
    for (int i = 0; i < kOwnMembers; ++i) {
      if (first + i < members && begin_state(first + i) != nullptr) {
        load_state(states[i], begin_state(first + i), tile_of(first + i));
      }
    }
    Position at;
    const int end = chunks();
    // Along the walk the last pair in time, which may be one chunk, is a reverse walk's first.
    const int odd = Config::kReverse ? all_chunks() % 2 : 0;
    int kept = first_state + (Config::kReverse ? pairs() - 1 : 0);
    for (int chunk = 0; chunk < end; ++chunk, at.advance()) {
      if (chunk == 0 || (chunk + odd) % 2 == 0) {
        keep(states, kept, first);
        kept += Config::kReverse ? -1 : 1;
      }
      const auto& stage = shared.stages[at.stage];
      std::uint32_t values[kOwnMembers][4][4];
      shared.input.wait_full(at);
#pragma unroll
      for (int i = 0; i < kOwnMembers; ++i) {
        const auto& decay = shared.decay[at.stage][first + i];
        load_decayed_values<Element, 0, 4>(values[i], stage.v[first + i], decay.to_state);
        const float factor = decay.state_to_state;
#pragma unroll
        for (float& value : states[i]) value *= factor;
      }
#pragma unroll
      for (int i = 0; i < kOwnMembers; ++i) fence_registers(states[i]);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kOwnMembers; ++i) add_tokens<Element>(states[i], values[i], stage.k);
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kOwnMembers; ++i) {
        hold_operand(values[i]);
        fence_registers(states[i]);
      }
      shared.input.empty[at.stage].arrive();
    }
    if (end_state(first) == nullptr && pairs() > 0) keep(states, kept, first);
#pragma unroll
    for (int i = 0; i < kOwnMembers; ++i) {
      if (first + i < members && end_state(first + i) != nullptr) {
        Item own = item;
        own.head = member_at(first + i).head;
        const float factor = first_factor(params.problem.forward.log_decay, own);
#pragma unroll
        for (float& value : states[i]) value *= factor;
        store_state(states[i], end_state(first + i), tile_of(first + i));
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
    constexpr int kOwn = GroupStatesShape::kOwnMembers;
    if (threadIdx.x == 0) {
      shared.input.init(1 + 32, 128 * ((walk.members + kOwn - 1) / kOwn));
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
      if (first < walk.members) walk.walk(first);
    }
  };
  if (reverse) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

}  // namespace tandem::cuda::gla
