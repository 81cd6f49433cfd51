// The load role of gla_walk_kernel: which items come next, q, k and v of later chunks into the
// ring, by TMA or by threads, and each chunk's decay factors.
#pragma once

#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/walk/shared.cuh"

namespace tandem::cuda::gla {

template <class Config>
__device__ Item find_item(const WalkParams& params, int index) {
  const GlaForwardProblem& problem = params.problem;
  const WalkSchedule& schedule = params.schedule;
  Item item;
  item.first_column = index % schedule.value_tiles * Config::kValueDim;
  index /= schedule.value_tiles;
  item.head = index % problem.H;
  std::int64_t n = index / problem.H;
  if constexpr (Config::kSplit) {
    item.segment = static_cast<int>(n % schedule.segments);
    item.segments = schedule.segments;
    n /= schedule.segments;
    if (schedule.pieces != nullptr) {
      const WalkPiece piece = schedule.pieces[index / problem.H];
      if (piece.segments == 0) return {};
      n = piece.sequence;
      item.segment = piece.segment;
      item.segments = piece.segments;
    }
  } else if (schedule.order != nullptr) {
    n = schedule.order[n];
  }
  set_sequence(item, problem, n);

  const std::int64_t sequence_head = n * problem.H + item.head;
  const std::int64_t state_size = std::int64_t{problem.K} * problem.V;
  if constexpr (Config::kSplit) keep_segment<Config>(item, item.segment, item.segments);
  if (problem.initial_state != nullptr && item.segment == 0) {
    item.initial_state = problem.initial_state + sequence_head * state_size;
  }
  if (problem.final_state != nullptr && item.segment == item.segments - 1) {
    item.final_state = problem.final_state + sequence_head * state_size;
  }
  return item;
}

/// Places the first item of a dense batch, before the stream is followed: it needs no memory. The
/// thread of schedule_items.
template <class Config>
__device__ void place_first_item(const WalkParams& params, WalkShared<Config>& shared) {
  if (params.problem.cu_seqlens == nullptr) {
    shared.items[0] = find_item<Config>(params, blockIdx.x);
  }
}

/// Finds one item after another. One thread.
template <class Config>
__device__ void schedule_items(const WalkParams& params, WalkShared<Config>& shared) {
  const WalkSchedule& schedule = params.schedule;
  typename WalkShared<Config>::ItemRing::Position at;
  unsigned index = blockIdx.x;
  for (bool is_placed = params.problem.cu_seqlens == nullptr;; is_placed = false) {
    const bool exists = index < static_cast<unsigned>(schedule.items);
    if (!is_placed) {
      const Item item = exists ? find_item<Config>(params, index) : Item{};
      shared.item_ring.wait_empty(at);
      shared.items[at.stage] = item;
    }
    shared.item_ring.full[at.stage].arrive();
    at.advance();
    if (!exists) return;
    index =
        schedule.ticket != nullptr ? gridDim.x + atomicAdd(schedule.ticket, 1u) : index + gridDim.x;
  }
}

template <class Config>
__device__ void load_with_tma(const WalkParams& params, WalkShared<Config>& shared) {
  const GlaForwardProblem& problem = params.problem;
  typename WalkShared<Config>::InputRing::Position at;
  ItemReader<Config> reader(shared);
  while (const Item* next = reader.next()) {
    const Item item = *next;
    const int query_head = item.head / (problem.H / problem.HQ);
    const int value_head = item.head / params.heads_per_value;
    const auto load = [&](int chunk, bool with_queries) {
      const int time = item.chunk_begin<Config>(chunk);
      const TileCoordinate from{0, query_head, time, item.batch};
      auto& stage = shared.stages[at.stage];
      Barrier& full = shared.input.full[at.stage];
      shared.input.wait_empty(at);
      const bool with_x = with_queries && wants_x<Config>(params);
      full.arrive_and_expect(Config::kStageBytes - (with_queries ? 0 : Config::kKeyBytes) -
                             (with_x ? 0 : Config::kFactorBytes));
      if (with_queries) load_tile(params.q_map, full, stage.q, Config::kKeyDim, from);
      load_tile(params.k_map, full, stage.k, Config::kKeyDim, from);
      const TileCoordinate values{item.first_column, value_head, time, item.batch};
      load_tile(params.v_map, full, stage.v, Config::kValueDim, values);
      if (with_x) load_tile(params.x_map, full, stage.x(), Config::kValueDim, values);
      at.advance();
    };
    for (int chunk = span_chunks<Config>(item) - 1; chunk >= 0; --chunk) {
      load(chunk, false);
    }
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk) load(chunk, true);
  }
}

template <class Config>
__device__ void load_with_threads(const WalkParams& params, WalkShared<Config>& shared) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  typename WalkShared<Config>::InputRing::Position at;
  ItemReader<Config> reader(shared);
  while (const Item* next = reader.next()) {
    const Item item = *next;
    const TileCoordinate keys{0, item.head / (problem.H / problem.HQ), 0, item.batch};
    const TileCoordinate values{item.first_column, item.head / params.heads_per_value, 0,
                                item.batch};
    const auto load = [&](int chunk, bool with_queries) {
      const int time = item.chunk_begin<Config>(chunk);
      const int rows = item.valid_tokens<Config>(chunk);
      auto& stage = shared.stages[at.stage];
      shared.input.wait_empty(at);
      if (with_queries) {
        gather_tile<Element>(stage.q, Config::kKeyDim, problem.q, problem.K, rows, keys, time);
      }
      gather_tile<Element>(stage.k, Config::kKeyDim, problem.k, problem.K, rows, keys, time);
      gather_tile<Element>(stage.v, Config::kValueDim, problem.v, problem.V, rows, values, time);
      if (with_queries && wants_x<Config>(params)) {
        gather_tile<Element>(stage.x(), Config::kValueDim, params.row_sums.x, problem.V, rows,
                             values, time);
      }
      fence_shared_for_async_proxy();
      shared.input.full[at.stage].arrive();
      at.advance();
    };
    for (int chunk = span_chunks<Config>(item) - 1; chunk >= 0; --chunk) {
      load(chunk, false);
    }
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk) load(chunk, true);
  }
}

/// Makes the decay factors of all chunks. All lanes of one warp.
template <class Config>
__device__ void prepare_decay(const WalkParams& params, WalkShared<Config>& shared) {
  const GlaForwardProblem& problem = params.problem;
  typename WalkShared<Config>::InputRing::Position at;
  ItemReader<Config> reader(shared);
  while (const Item* next = reader.next()) {
    const Item& item = *next;
    const auto prepare = [&](int chunks, int first, int step) {
      DecayStream<Config::kReverse> decays(shared.log_decays, problem.log_decay, item, item.left,
                                           item.chunk_offset<Config>(first),
                                           Config::kReverse ? -step : step);
      for (int i = 0; i < chunks; ++i, at.advance()) {
        const LogDecays own = decays.next();
        shared.input.wait_empty(at);
        compute_chunk_decay<Config::kReverse>(own, problem.scale, shared.decay[at.stage]);
        shared.input.full[at.stage].arrive();
      }
    };
    const int of_span = span_chunks<Config>(item);
    if (of_span > 0) prepare(of_span, of_span - 1, -1);
    prepare(item.chunks<Config>(), 0, 1);
  }
}

}  // namespace tandem::cuda::gla
