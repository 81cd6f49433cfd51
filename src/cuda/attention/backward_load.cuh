// The loading role of attention_backward_kernel: which block of keys comes next, its keys and
// values, and the tiles of queries that see it.
#pragma once

#include "cuda/attention/backward_shared.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::attention {

/// The steps of an item: tiles of queries, from the last on, each for all heads of the part, or
/// (AttentionBackwardParams::head_by_head) all tiles of one head after the other.
struct BackwardStep {
  int head;  // of the queries
  int tile;  // in its sequence

  explicit __device__ BackwardStep(const BackwardItem& item)
      : head(item.first_head), tile(item.last_tile) {}

  __device__ bool exists(const BackwardItem& item) const { return tile >= item.first_tile; }
  __device__ void advance(const BackwardItem& item, bool head_by_head) {
    if (head_by_head) {
      if (--tile < item.first_tile && head + 1 < item.end_head) {
        tile = item.last_tile;
        ++head;
      }
    } else if (++head == item.end_head) {
      head = item.first_head;
      --tile;
    }
  }
};

/// All lanes of the first warp.
template <class Config>
struct BackwardLoad {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  // So far. why no positions in rings: registers are few.
  unsigned items = 0, steps = 0;

  using Shared = BackwardShared<Config>;

  __device__ static bool is_first() { return RowLoader::is_first(); }

  __device__ bool cuts_queries() const { return params.problem.forward.cu_seqlens_q != nullptr; }

  /// Where a block's keys lie, and how many rows of them are to be read. Rows behind the tensors'
  /// ends are zero already.
  __device__ TileCoordinate place_of_keys(const BackwardItem& item) const {
    return {0, item.key_head, item.span.key_begin + item.block * Config::kKeys, item.span.batch};
  }
  __device__ int rows_of_keys(const BackwardItem& item) const {
    const bool cuts = cuts_queries() || params.problem.forward.lengths_k != nullptr;
    return cuts ? item.span.keys - item.block * Config::kKeys : Config::kKeys;
  }

  __device__ void load_keys(const BackwardItem& item) {
    shared.keys.wait_empty(ring_position<1>(items));
    shared.rows.template load<Config::kKeys, Config::kKeyPanels>(
        params.k_map, shared.keys.full[0], shared.k, place_of_keys(item), rows_of_keys(item), 0);
  }
  __device__ void load_values(const BackwardItem& item) {
    shared.values.wait_empty(ring_position<1>(items));
    shared.rows.template load<Config::kKeys, Config::kValuePanels>(
        params.v_map, shared.values.full[0], shared.v, place_of_keys(item), rows_of_keys(item), 0);
  }

  /// Loads a tile of q or d_o, and what belongs to its rows.
  template <int kPanels>
  __device__ void load_tile(const CUtensorMap& map, Barrier& full, char* tile, const float* of_rows,
                            float* to_rows, const BackwardItem& item, BackwardStep step) {
    const SequenceSpan& span = item.span;
    const int query = step.tile * Config::kQueries;
    shared.rows.template load<Config::kQueries, kPanels>(
        map, full, tile, {0, step.head, span.query_begin + query, span.batch},
        cuts_queries() ? span.queries - query : Config::kQueries, Shared::kRowBytes);
    if (is_first()) {
      const std::int64_t row =
          (std::int64_t{step.head} * params.query_tiles + item.tiles_before + step.tile) *
          Config::kQueries;
      cute::SM90_BULK_COPY_G2S::copy(of_rows + row, &full.word, to_rows, Shared::kRowBytes);
    }
  }

  __device__ void load_queries(const BackwardItem& item, BackwardStep step) {
    const auto at = ring_position<Config::kQueryStages>(steps);
    shared.queries.wait_empty(at);
    const int stage = at.stage;
    if (is_first()) shared.query_tiles[stage] = step.tile;
    load_tile<Config::kKeyPanels>(params.q_map, shared.queries.full[stage], shared.q[stage],
                                  params.log_sum_exp, shared.log_sum_exp[stage], item, step);
  }
  __device__ void load_gradients(const BackwardItem& item, BackwardStep step) {
    const auto at = ring_position<Config::kGradientStages>(steps);
    shared.gradients.wait_empty(at);
    const int stage = at.stage;
    load_tile<Config::kValuePanels>(params.d_o_map, shared.gradients.full[stage], shared.d_o[stage],
                                    params.row_products, shared.row_products[stage], item, step);
  }

  __device__ void load_item(const BackwardItem& item) {
    if (item.tiles() <= 0) {
      shared.keys.wait_empty(ring_position<1>(items));
      shared.values.wait_empty(ring_position<1>(items));
      if (is_first()) {
        shared.keys.full[0].arrive();
        shared.values.full[0].arrive();
      }
      return;
    }
    // In the order in which the block before has done with theirs.
    BackwardStep step(item);
    load_queries(item, step);
    load_values(item);
    load_gradients(item, step);
    load_keys(item);
    for (++steps, step.advance(item, params.head_by_head); step.exists(item);
         ++steps, step.advance(item, params.head_by_head)) {
      load_queries(item, step);
      load_gradients(item, step);
    }
  }

  /// Finds the next item and writes it down for all roles. Returns whether there is one.
  __device__ bool find_item() {
    int index = 0;
    if (is_first()) index = static_cast<int>(atomicAdd(params.tickets, 1u));
    index = __shfl_sync(0xFFFFFFFFu, index, 0);
    const bool exists =
        index < params.key_blocks * params.problem.forward.HKV * params.parts.count();
    const auto at = ring_position<Config::kItemSlots>(items);
    shared.item_ring.wait_empty(at);
    BackwardItem& item = shared.items[at.stage];
    if (exists) {
      const BackwardPlace place(params, Config::kTile, index);
      if (is_first()) item.set(params, Config::kTile, place);
      __syncwarp();  // why: registers are few, and this keeps item.set's out of what follows
      if (is_first()) item.keep_part(params);
    } else if (is_first()) {
      item.key_head = BackwardItem::kNone;
    }
    if (is_first()) shared.item_ring.full[at.stage].arrive();
    __syncwarp();
    return exists;
  }

  __device__ void run() {
    for (; find_item(); ++items) load_item(shared.items[items % Config::kItemSlots]);
  }
};

}  // namespace tandem::cuda::attention
