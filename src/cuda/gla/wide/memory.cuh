// The roles of gla_wide_gradients_kernel that copy in: one thread tensors' panels, another the
// states and tables of decays. Both go through the slots as WideRows::make() does.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/wide/shared.cuh"

namespace tandem::cuda::gla {

/// Calls load(item) for a CTA's items.
template <class Load>
__device__ void for_each_wide_item(const WideBackwardParams& params, const Load& load) {
#pragma unroll 1
  for (WidePosition position; position.more(params); ++position.round) {
    if (position.has_item(params)) load(find_wide_item(params, position.item()));
  }
}

template <class Config>
struct WidePanels {
  const WideBackwardParams& params;
  WideShared<Config>& shared;

  RingPosition<WideShared<Config>::kSlots> at = {};

  __device__ void run() {
    for_each_wide_item(params, [&](const WideItem& item) { load(item); });
  }

 private:
  __device__ static TileCoordinate at_token(const WideItem& item, int column, int time) {
    return {column, item.batch_head, time, item.batch};
  }
  /// 128 tokens of 64 columns.
  __device__ void load_rows(const CUtensorMap& map, char* panel, TileCoordinate from) {
    load_panel(map, full(), panel, from);
    from.time += 64;
    load_panel(map, full(), panel + panel_bytes(64), from);
  }
  /// Steps of pairs; `with_state`: a step of the state comes behind each, from the other thread.
  __device__ void load_steps(const CUtensorMap& rows, const CUtensorMap& tokens,
                             const WideItem& item, int time, bool with_state) {
    const int end = kPanelColumns * wide_steps(params, item);
#pragma unroll 1
    for (int column = 0; column < end; column += kPanelColumns) {
      auto& step = shared.slots[at.stage].step;
      expect(Config::kSlotBytes);
      load_rows(rows, step.rows, at_token(item, column, item.begin()));
      load_rows(tokens, step.tokens, at_token(item, column, time));
      at.advance(with_state ? 2 : 1);
    }
  }
  /// 128 tokens, all columns of the gradient: in one slot, or one half of the tokens behind the
  /// other.
  __device__ void load_tokens(const CUtensorMap& map, const WideItem& item, int time) {
#pragma unroll 1
    for (int slot = 0; slot < Config::kTileSlots; ++slot) {
      char* to = shared.slots[at.stage].tile;
      expect(Config::kSlotBytes);
      for (int half = 0; half < 2 / Config::kTileSlots; ++half, time += 64) {
        load_tile(map, full(), to, Config::kColumns, at_token(item, item.column, time));
        to += Config::kSlotBytes / 2;
      }
      at.advance();
    }
  }
  /// The same of the rows, one half of the columns behind the other.
  __device__ void load_partner(const CUtensorMap& map, const WideItem& item) {
#pragma unroll 1
    for (int column = 0; column < Config::kColumns; column += 128) {
      char* const tile = shared.slots[at.stage].tile;
      expect(Config::kSlotBytes);
      load_rows(map, tile, at_token(item, column, item.begin()));
      load_rows(map, tile + Config::kRowPanelBytes,
                at_token(item, column + kPanelColumns, item.begin()));
      at.advance();
    }
  }

  __device__ void load(const WideItem& item) {
    switch (item.gradient) {
      case WideGradient::kQuery:
        return load(item, params.d_o_map, params.v_map, params.k_map, params.q_map);
      case WideGradient::kKey:
        return load(item, params.v_map, params.d_o_map, params.q_map, params.k_map);
      default: return load(item, params.k_map, params.q_map, params.d_o_map, params.v_map);
    }
  }
  __device__ __forceinline__ void load(const WideItem& item, const CUtensorMap& rows,
                                       const CUtensorMap& tokens, const CUtensorMap& tile,
                                       const CUtensorMap& partner) {
    load_steps(rows, tokens, item, item.begin(), true);
    if (has_sums(params, item) && !item.is_query()) load_partner(partner, item);
    load_tokens(tile, item, item.begin());
    if (has_other_block(params, item)) {
      const int other = item.begin_of(1 - item.block);
      load_steps(rows, tokens, item, other, false);
      load_tokens(tile, item, other);
    }
    if (has_sums(params, item)) load_partner(partner, item);
  }

  __device__ Barrier& full() { return shared.ring.full[at.stage]; }
  __device__ void expect(int bytes) {
    shared.ring.wait_empty(at);
    full().arrive_and_expect(bytes);
  }
};

template <class Config>
struct WideStates {
  const WideBackwardParams& params;
  WideShared<Config>& shared;

  RingPosition<WideShared<Config>::kSlots> at = {};
  RingPosition<WideShared<Config>::kTables> table = {};

  __device__ void run() {
    for_each_wide_item(params, [&](const WideItem& item) { load(item); });
  }

 private:
  __device__ std::int64_t span_of(const WideItem& item) const {
    return std::int64_t{item.head} * params.spans + item.span;
  }

  __device__ void load_table(const WideItem& item) {
    constexpr int kBytes = sizeof(shared.tables[0]);
    Barrier& filled = shared.decays.full[table.stage];
    shared.decays.wait_empty(table);
    filled.arrive_and_expect(kBytes);
    cute::SM90_BULK_COPY_G2S::copy(
        reinterpret_cast<const char*>(params.decays) + span_of(item) * kBytes, &filled.word,
        shared.tables[table.stage], kBytes);
    table.advance();
  }

  /// The states' steps, each behind the other thread's, then past all others of an item.
  __device__ void load(const WideItem& item) {
    load_table(item);
    const char* states = (item.is_query() ? params.states : params.state_gradients) +
                         span_of(item) * params.state_bytes();
    const int steps = wide_steps(params, item);
    const bool columns = item.gradient == WideGradient::kValue;
    const int first = item.column / kPanelColumns;
    const int panels =
        columns ? min(params.value_panels - first, Config::kColumns / kPanelColumns) : 1;
    if (columns) states += first * Config::kStateBytes;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      at.advance();
      shared.ring.wait_empty(at);
      Barrier& full = shared.ring.full[at.stage];
      char* const to = shared.slots[at.stage].tile;
      // Of St [V,K] 64 rows, or 64 columns of up to 256 rows.
      const int bytes = columns ? panel_bytes(64) : Config::kStateBytes;
      full.arrive_and_expect(panels * bytes);
#pragma unroll 1
      for (int panel = 0; panel < panels; ++panel) {
        cute::SM90_BULK_COPY_G2S::copy(states + panel * Config::kStateBytes, &full.word,
                                       to + panel * panel_bytes(64), bytes);
      }
      states += bytes;
      at.advance();
    }
    const int sums = has_sums(params, item) ? item.is_query() ? 1 : 2 : 0;
    const int others = has_other_block(params, item) ? steps + Config::kTileSlots : 0;
    // why waits: a barrier tells two turns of the ring apart.
#pragma unroll 1
    for (int slot = Config::kTileSlots * (1 + sums) + others; slot > 0; --slot) {
      shared.ring.wait_empty(at);
      at.advance();
    }
  }
};

}  // namespace tandem::cuda::gla
