// The load role of attention_weights_forward_kernel: each pass's keys, and queries where a tile
// begins.
#pragma once

#include "cuda/attention_weights/forward_shared.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::attention_weights {

/// One thread.
template <class Config>
struct ForwardLoad {
  const ForwardParams& params;
  ForwardShared<Config>& shared;

  /// Loads a tile of `rows` rows as panels of 64 columns.
  __device__ static void load_tile(const CUtensorMap& map, Barrier& full, char* tile, int rows,
                                   TileCoordinate from) {
    full.arrive_and_expect(Config::kKeyPanels * panel_bytes(rows));
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
      load_panel(map, full, tile + panel * panel_bytes(rows), from);
      from.column += kPanelColumns;
    }
  }

  __device__ void run() const {
    const int key_head = shared.strip.head / (params.problem.H / params.problem.HKV);
    typename Ring<Config::kStages>::Position keys_at;
#pragma unroll 1
    for (int pass = 0; pass < shared.strip.passes(); ++pass) {
#pragma unroll 1
      for (int group = 0; group < Config::kGroups; ++group) {
        const auto turn = shared.strip.turn(group, pass);
        if (!turn.works || turn.stores) continue;
        auto& ring = shared.queries[group];
        const int stage = turn.queries.stage;
        ring.wait_empty(turn.queries);
        load_tile(params.q_map, ring.full[stage], shared.q[group][stage], 64,
                  {0, shared.strip.head, turn.query, shared.strip.batch});
      }
      const int blocks = shared.strip.blocks(pass);
#pragma unroll 1
      for (int block = 0; block < blocks; ++block, keys_at.advance()) {
        shared.keys.wait_empty(keys_at);
        load_tile(params.k_map, shared.keys.full[keys_at.stage], shared.k[keys_at.stage],
                  Config::kKeys, {0, key_head, block * Config::kKeys, shared.strip.batch});
      }
    }
  }
};

}  // namespace tandem::cuda::attention_weights
