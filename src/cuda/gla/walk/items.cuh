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

/// Makes the item of an index; none past the last. Of a sequence that is cut by find_entry, all.
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
  if (Config::kSplit && first_chunks<Config>(params) == 0) {
    const bool chained = problem.log_decay.data == nullptr;  // else decays mostly break the chain
    keep_segment<Config>(item, item.segment, item.segments, chained);
  }
  if (problem.initial_state != nullptr) item.initial_state = problem.initial_state + state;
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

/// Index of the first item of a packed batch's CTA.
__device__ inline unsigned first_packed(const WalkParams& params) {
  return skips(params.guard) ? static_cast<unsigned>(params.schedule.items) : blockIdx.x;
}

/// Places the first item of a dense batch, before the stream is followed: it needs no memory. The
/// thread of schedule_items.
template <class Config>
__device__ void place_first_item(const WalkParams& params, WalkShared<Config>& shared) {
  if (params.problem.cu_seqlens == nullptr) find_dense<Config>(params, 0, shared.items[0]);
}

/// Finds what the CTA of a split walk reads before it walks, and where its sequence is cut, if no
/// CTA tells another. All warps of DecaySumsShared.
template <class Config>
__device__ SegmentEntry look_back(const WalkParams& params, WalkShared<Config>& shared,
                                  Item& item) {
  using Sums = DecaySumsShared<Config::kThreads, 2>;
  const auto find = [&](const Span(&spans)[2], int(&remembered)[2]) {
    remembered[0] = remembered[1] = 0;
#pragma unroll
    for (int head = 0; head < Config::kHeads; ++head) {
      if (head > 0) Sums::meet();
      int of_head[2];
      find_remembered<Config>(shared.segment.decay_sums, params.problem.log_decay, item,
                              item.head_of<Config>(head), spans, true, of_head);
      remembered[0] = max(remembered[0], of_head[0]);
      remembered[1] = max(remembered[1], of_head[1]);
    }
  };
  const int chunks = item.chunks<Config>();
  int remembered[2];
  if (const int first = first_chunks<Config>(params); first > 0) {
    // Both CTAs end together: the more the second one reads, the longer is the first segment.
    const int half = chunks / 2;
    find({{-1, 0}, {half - 1, half}}, remembered);
    const int cut = half + (first - half) * remembered[1] / half;
    Sums::meet();
    if (threadIdx.x == 32 * Sums::kFirstWarp) {
      keep_chunks<Config>(item, item.segment * cut, item.segment == 0 ? cut : chunks);
    }
    Sums::meet();
    const int before = item.before / Config::kChunk;
    find({{-1, 0}, {-1, before}}, remembered);
    return {0, true, remembered[1], remembered[1] == before};
  }
  const Span spans[2] = {{chunks - 1, item.segment + 1 < item.segments ? chunks : 0},
                         {-1, item.earlier_chunks}};
  find(spans, remembered);
  SegmentEntry entry;
  entry.told_whole = remembered[1] == spans[1].count;
  if (!entry.told_whole) entry.before = remembered[1];
  // why only a segment that is remembered as a whole: others are read by those who need them.
  if (remembered[0] == spans[0].count && remembered[0] > 0) entry.told = chunks + entry.before;
  return entry;
}

/// Places the one item of a split walk's CTA, and what is read before. All threads of the CTA.
template <class Config>
__device__ void find_entry(const WalkParams& params, WalkShared<Config>& shared) {
  Item& item = shared.items[0];
  if (params.problem.cu_seqlens != nullptr) {
    if (threadIdx.x == 0) find_item<Config>(params, first_packed(params), item);
    __syncthreads();
  }
  constexpr int kFirst = 32 * DecaySumsShared<Config::kThreads, 2>::kFirstWarp;
  if (item.batch != Item::kNone && threadIdx.x >= kFirst) {
    const SegmentEntry entry = look_back<Config>(params, shared, item);
    if (threadIdx.x == kFirst) shared.segment.entry = entry;
  }
  __syncthreads();
}

/// Finds one item after another. One thread.
template <class Config>
__device__ void schedule_items(const WalkParams& params, WalkShared<Config>& shared) {
  const WalkSchedule& schedule = params.schedule;
  const bool dense = params.problem.cu_seqlens == nullptr;
  typename WalkShared<Config>::ItemRing::Position at;
  unsigned index = dense ? 0 : first_packed(params);
  for (int turn = 0;; ++turn) {
    Item& item = shared.items[at.stage];
    shared.item_ring.wait_empty(at);
    const bool placed = turn == 0 && (dense || Config::kSplit);
    if (!placed && dense) find_dense<Config>(params, turn, item);
    if (!placed && !dense) find_item<Config>(params, index, item);
    const bool exists = item.batch != Item::kNone;
    shared.item_parity[at.stage] = at.parity;
    shared.item_ring.full[at.stage].arrive();
    if (!exists) return;
    at.advance();
    index =
        schedule.ticket != nullptr ? gridDim.x + atomicAdd(schedule.ticket, 1u) : index + gridDim.x;
  }
}

}  // namespace tandem::cuda::gla
