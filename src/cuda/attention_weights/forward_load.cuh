// The load role of attention_weights_forward_kernel: queries where a turn begins, and its keys,
// twice.
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
    for (int turn = 0; turn < shared.strip.turns(); ++turn) {
      const auto at = shared.strip.queries(turn);
#pragma unroll 1
      for (int group = 0; group < Config::kGroups; ++group) {
        if (!shared.strip.works(group, turn)) continue;
        auto& ring = shared.queries[group];
        ring.wait_empty(at);
        load_tile(params.q_map, ring.full[at.stage], shared.q[group][at.stage], 64,
                  {0, shared.strip.head, shared.strip.query(group, turn), shared.strip.batch});
      }
#pragma unroll 1
      for (int pass = 0; pass < 2; ++pass) {
        const int blocks = shared.strip.blocks(turn, pass == 1);
#pragma unroll 1
        for (int key = 0; key < blocks * Config::kKeys; key += Config::kStageKeys) {
          shared.keys.wait_empty(keys_at);
          load_tile(params.k_map, shared.keys.full[keys_at.stage], shared.k[keys_at.stage],
                    Config::kStageKeys, {0, key_head, key, shared.strip.batch});
          keys_at.advance();
        }
      }
    }
  }
};

}  // namespace tandem::cuda::attention_weights
