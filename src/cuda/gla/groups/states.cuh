// gla_group_states_kernel: the states at both ends of every pair of chunks, for the gradients of
// grouped heads.
//
// A CTA walks one segment of a sequence for one or up to four members of a group and a part of 128
// columns of K, either over k and v from the first token on, or over q and do from the last token
// back, in chunks of 64 tokens. It leaves the states that it has where a pair of chunks begins
// along the walk, rounded to 16 bits, of k and v only where the forward did not save its states:
//   St  = 2^G_C St + (Vt 2^(G_C - G_j)) K            before a pair
//   dSt = the same of do and q (parts/decay.cuh)     behind a pair, without the next token's decay,
//                                                    if that is of the segment
//
// Role      threads                registers  work
//   prepare a warp per member      32 or 56  decay factors of later chunks; the first warp's first
//                                            thread: k and v of later chunks by TMA (3 stages)
//   state   a warpgroup each     112 or 200  St in registers, out by bulk copies
// Shared memory: 90 KB of a member at 128 columns of K, for two CTAs an SM, 223 KB of four. why
// four: they share the tiles of k, which from the L2 were two thirds of what came from there.
//
//   prepare ~~~ chunk n+3 ~~~   ~~~ chunk n+4 ~~~
//   state   -round, store- -decay V- =V K=   -decay V- =V K=
// prepare waits for input.empty and arrives on input.full; state the other way round.
//
// Floor: v and do read once (by the other part from the L2), k and q once per member (mostly from
// the L2), and two states of 2 K V bytes written per head and pair. Numerics: fp32 states;
// rounded are the decayed V, and what is left behind.
#pragma once

#include "cuda/gla/common/state_walk.cuh"
#include "cuda/gla/groups/shared.cuh"

namespace tandem::cuda::gla {

template <class Group, int kWalksT, bool kReverseT>
struct GroupStatesConfig : Group {
  static constexpr int kChunk = 64;
  static constexpr int kWalks = kWalksT;
  static constexpr bool kReverse = kReverseT;
};

/// One of a CTA's walks.
template <class Config>
struct GroupStatesWalk : StateWalk<Config, GroupStatesWalk<Config>> {
  using Base = StateWalk<Config, GroupStatesWalk>;
  using Base::all_chunks, Base::item;
  using typename Base::Position, typename Base::Shared, typename Base::State;

  const GroupBackwardParams& params;
  int segment;
  int group;         // of the batch
  int key_head;      // its head of q and k
  int first_member;  // of the CTA's
  int first_state;   // of the member and the segment

  __device__ GroupStatesWalk(const GroupBackwardParams& params, Shared& shared, int own,
                             unsigned index)
      : Base(shared, own), params(params) {
    const GlaForwardProblem& problem = params.problem.forward;
    const unsigned ctas = state_walk_ctas(params.members, Config::kWalks);
    const unsigned of_segment = index / ctas;
    const int cta = static_cast<int>(index - of_segment * ctas);
    first_member = first_state_walk(cta, params.members, Config::kWalks);
    Base::walks = first_state_walk(cta + 1, params.members, Config::kWalks) - first_member;
    const int in_group = first_member + own;
    const unsigned of_group = of_segment / params.slab.segments;
    segment =
        params.slab.first_segment + static_cast<int>(of_segment - of_group * params.slab.segments);
    const unsigned of_all = of_group + params.slab.first_group;
    group = static_cast<int>(of_all % problem.HQ);
    key_head = group >> params.log2_splits;
    set_sequence(item, problem, of_all / problem.HQ);
    keep_chunks<Config>(item, segment * params.segment_chunks,
                        (segment + 1) * params.segment_chunks);
    const GroupMember member = find_member(params, group, in_group);
    item.head = member.head;
    item.first_column = member.column;
    first_state = (static_cast<int>(of_group) * params.members + in_group) * params.slab_pairs +
                  (segment - params.slab.first_segment) * (params.segment_chunks / 2);
  }

  __device__ std::int64_t sequence_head() const {
    return std::int64_t{item.batch} * Base::problem().H + item.head;
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
  /// Chunks of the segment that come before some pair, or all of them.
  __device__ int chunks() const {
    const int all = all_chunks();
    if (end_state() != nullptr) return all;
    return max(all - (Config::kReverse || all % 2 == 0 ? 2 : 1), 0);
  }
  __device__ int pairs() const { return (all_chunks() + 1) / 2; }

  __device__ StateColumns columns_of(int walk) const {
    const GroupMember member = find_member(params, group, first_member + walk);
    return {member.head, member.column};
  }
  __device__ void load(Position at, int chunk) const {
    Base::load(at, chunk, Config::kReverse ? params.q_map : params.k_map,
               Config::kReverse ? params.d_o_map : params.v_map, key_head, 0);
  }

  /// Stores the state where a pair begins.
  __device__ void keep(const State& state, int index) const {
    const int kinds = params.kinds();
    const std::int64_t tile = kinds * std::int64_t{index} + (Config::kReverse ? kinds - 1 : 0);
    Base::leave(state, static_cast<char*>(params.states) + tile * Config::kTileBytes);
  }

  __device__ void walk() const {
    State state;
    load_entry_state(state, begin_state(), Base::tile(Base::problem().K));
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
      Base::walk_chunk(state, at);
    }
    if (end_state() == nullptr && pairs() > 0) keep(state, kept);
    if (end_state() != nullptr) Base::store_end(state, end_state(), Base::problem().K);
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }
};

template <class Group, int kParts, int kWalks>
__global__ __launch_bounds__(
    StateWalkShape<kWalks>::kThreads,
    StateWalkShape<kWalks>::kCtas) void gla_group_states_kernel(const __grid_constant__
                                                                    GroupBackwardParts parts) {
  extern __shared__ __align__(1024) char shared_memory[];
  // Directions are innermost, then parts, which read the same v and d_o.
  const unsigned directions = parts.of[0].kinds(), of_part = blockIdx.x / directions;
  const bool reverse = blockIdx.x % directions == directions - 1;
  const GroupBackwardParams& params = parts.of[of_part % kParts];
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 32) {
    prefetch_tensor_map(reverse ? params.q_map : params.k_map);
    prefetch_tensor_map(reverse ? params.d_o_map : params.v_map);
  }
  const auto run = [&]<bool kReverse>() {
    using Walk = GroupStatesWalk<GroupStatesConfig<Group, kWalks, kReverse>>;
    auto& shared = *reinterpret_cast<typename Walk::Shared*>(shared_memory);
    run_state_walk<kWalks>(Walk(params, shared, state_walk_of_warp(warp), of_part / kParts), warp);
  };
  if (reverse) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

}  // namespace tandem::cuda::gla
