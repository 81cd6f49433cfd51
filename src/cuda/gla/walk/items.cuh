// Which items a CTA of gla_walk_kernel walks. One thread of the load role finds them, each in its
// slot of the item ring: with few registers, where it lies is where it is made.
#pragma once

#include "cuda/gla/common/finite_guard.cuh"
#include "cuda/gla/walk/shared.cuh"

namespace tandem::cuda::gla {

/// Sets the heads of walk `index` of a sequence.
template <class Config>
__device__ void set_heads(Item& item, const GlaRecurrence& problem, int index) {
  if constexpr (Config::kHeads == 1) {
    item.head = index;
  } else {
    const int share = problem.H / problem.HQ;
    const int walks = (share + Config::kHeads - 1) / Config::kHeads;  // of a group of heads
    const int first_of_group = index / walks * share;
    item.head = first_of_group + index % walks * Config::kHeads;
    item.last_head = min(item.head + Config::kHeads, first_of_group + share) - 1;
  }
}

/// Makes the item of an index; none past the last.
template <class Config>
__device__ void find_item(const WalkParams& params, unsigned index, Item& item) {
  const GlaForwardProblem& problem = params.problem;
  const WalkSchedule& schedule = params.schedule;
  item = {};
  if (index >= static_cast<unsigned>(schedule.items)) return;
  item.first_column = static_cast<int>(index % schedule.value_tiles) * Config::kValueDim;
  index /= schedule.value_tiles;
  set_heads<Config>(item, problem, static_cast<int>(index % schedule.walks));
  index /= schedule.walks;
  std::int64_t n = index;
  if constexpr (Config::kSplit) {
    item.segment = static_cast<int>(n % schedule.segments);
    item.segments = schedule.segments;
    n /= schedule.segments;
    if (schedule.pieces != nullptr) {
      const WalkPiece piece = schedule.pieces[index];
      if (piece.segments == 0) return;
      n = piece.sequence;
      item.segment = piece.segment;
      item.segments = piece.segments;
    }
  } else if (schedule.order != nullptr) {
    n = schedule.order[n];
  }
  set_sequence(item, problem, n);

  const std::int64_t state = (n * problem.H + item.head) * params.state_strides.head;
  const int first = first_chunks<Config>(params);
  if (first > 0) {
    const int chunks = item.chunks<Config>();
    keep_chunks<Config>(item, item.segment * first, item.segment == 0 ? first : chunks);
  } else if (Config::kSplit) {
    keep_segment<Config>(item, item.segment, item.segments);
  }
  if (problem.initial_state != nullptr && (item.segment == 0 || first > 0)) {
    item.initial_state = problem.initial_state + state;
  }
  if (problem.final_state != nullptr && item.segment == item.segments - 1) {
    item.final_state = problem.final_state + state;
  }
}

/// Makes the item of a CTA's turn where CTAs share walks; none behind its last.
template <class Config>
__device__ void find_leg(const WalkParams& params, int turn, Item& item) {
  const WalkRelay& relay = params.schedule.relay;
  const Leg leg = relay.shared.leg(blockIdx.x, params.schedule.items / gridDim.x, turn);
  const bool exists = leg.first < leg.last;
  find_item<Config>(params, exists ? leg.index : params.schedule.items, item);
  if (!exists) return;
  keep_chunks<Config>(item, leg.first, leg.last);
  constexpr int kWarps = 4 * Config::kStateWarpgroups;
  const std::int64_t states = std::int64_t{Config::kHeads} * params.problem.K * params.problem.V;
  if (leg.first > 0) {
    item.initial_state = relay.states + leg.begin_slot * states;
    item.begin_ready = relay.ready + leg.begin_slot * kWarps;
  }
  if (leg.last < relay.shared.chunks) {
    item.final_state = relay.states + leg.end_slot * states;
    item.end_ready = relay.ready + leg.end_slot * kWarps;
  }
}

/// Makes the item of a CTA's turn in a dense batch.
template <class Config>
__device__ void find_dense(const WalkParams& params, int turn, Item& item) {
  if constexpr (Config::kRelays) {
    if (params.schedule.relay.states != nullptr) return find_leg<Config>(params, turn, item);
  }
  find_item<Config>(params, blockIdx.x + static_cast<unsigned>(turn) * gridDim.x, item);
}

/// Places the first item of a dense batch, before the stream is followed: it needs no memory. The
/// thread of schedule_items.
template <class Config>
__device__ void place_first_item(const WalkParams& params, WalkShared<Config>& shared) {
  if (params.problem.cu_seqlens == nullptr) find_dense<Config>(params, 0, shared.items[0]);
}

/// Finds one item after another. One thread.
template <class Config>
__device__ void schedule_items(const WalkParams& params, WalkShared<Config>& shared) {
  const WalkSchedule& schedule = params.schedule;
  const bool dense = params.problem.cu_seqlens == nullptr;
  typename WalkShared<Config>::ItemRing::Position at;
  // Of a packed batch's item.
  unsigned index = skips(params.guard) ? static_cast<unsigned>(schedule.items) : blockIdx.x;
  for (int turn = 0;; ++turn) {
    Item& item = shared.items[at.stage];
    shared.item_ring.wait_empty(at);
    if (!dense) {
      find_item<Config>(params, index, item);
    } else if (turn > 0) {  // else it is placed
      find_dense<Config>(params, turn, item);
    }
    const bool exists = item.batch != Item::kNone;
    shared.item_ring.full[at.stage].arrive();
    if (!exists) return;
    at.advance();
    index =
        schedule.ticket != nullptr ? gridDim.x + atomicAdd(schedule.ticket, 1u) : index + gridDim.x;
  }
}

}  // namespace tandem::cuda::gla
