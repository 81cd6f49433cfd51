// The load role of gla_walk_kernel: q, k and v of later chunks into the ring, by TMA or by threads,
// and each chunk's decay factors. Which items come next: items.cuh.
#pragma once

#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/walk/shared.cuh"

namespace tandem::cuda::gla {

template <class Config>
__device__ void load_with_tma(const WalkParams& params, WalkShared<Config>& shared) {
  const GlaForwardProblem& problem = params.problem;
  typename WalkShared<Config>::InputRing::Position at;
  for (ItemReader<Config> reader(shared); const Item* next = reader.current(); reader.advance()) {
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
      if constexpr (Config::kHeads == 1) {
        load_tile(params.v_map, full, stage.v, Config::kValueDim, values);
      } else {
#pragma unroll
        for (int i = 0; i < Config::kHeads; ++i) {
          load_panel(params.v_map, full, stage.v + i * panel_bytes(Config::kChunk),
                     {item.first_column, item.head_of<Config>(i), time, item.batch});
        }
      }
      if (with_x) load_tile(params.x_map, full, stage.x(), Config::kValueDim, values);
      at.advance();
    };
    if constexpr (Config::kSplit) {
      const SegmentEntry& entry = shared.segment.entry;
      for (int i = 0; i < entry.chunks(); ++i) load(entry.chunk<Config>(item, i), false);
    }
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk) load(chunk, true);
  }
}

template <class Config>
__device__ void load_with_threads(const WalkParams& params, WalkShared<Config>& shared) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  typename WalkShared<Config>::InputRing::Position at;
  for (ItemReader<Config> reader(shared); const Item* next = reader.current(); reader.advance()) {
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
    if constexpr (Config::kSplit) {
      const SegmentEntry& entry = shared.segment.entry;
      for (int i = 0; i < entry.chunks(); ++i) load(entry.chunk<Config>(item, i), false);
    }
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk) load(chunk, true);
  }
}

/// Makes the decay factors of all chunks of one of the item's heads. All lanes of one warp.
template <class Config>
__device__ void prepare_decay(const WalkParams& params, WalkShared<Config>& shared, int head) {
  const GlaForwardProblem& problem = params.problem;
  typename WalkShared<Config>::InputRing::Position at;
  for (ItemReader<Config> reader(shared); const Item* next = reader.current(); reader.advance()) {
    const Item& item = *next;
    const auto prepare = [&](int chunks, int first, int step) {
      DecayStream<Config::kReverse> decays(shared.log_decays[head], problem.log_decay, item,
                                           item.left, item.chunk_offset<Config>(first),
                                           Config::kReverse ? -step : step,
                                           item.head_of<Config>(head) - item.head);
      for (int i = 0; i < chunks; ++i, at.advance()) {
        const LogDecays own = decays.next();
        shared.input.wait_empty(at);
        compute_chunk_decay<Config::kReverse>(own, problem.scale, shared.decay[at.stage][head]);
        shared.input.full[at.stage].arrive();
      }
    };
    if constexpr (Config::kSplit) {
      const SegmentEntry& entry = shared.segment.entry;
#pragma unroll 1
      for (int i = 0; i < entry.chunks(); i = i < entry.told ? entry.told : entry.chunks()) {
        const int end = i < entry.told ? entry.told : entry.chunks();
        prepare(end - i, entry.chunk<Config>(item, i), -1);
      }
    }
    prepare(item.chunks<Config>(), 0, 1);
  }
}

}  // namespace tandem::cuda::gla
