// The load role of attention_forward_kernel: which tile comes next, its queries, and its blocks of
// keys and values from the last to the first.
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/attention/forward_shared.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::attention {

/// A warp that loads; one lane starts the copies.
template <class Config>
struct ForwardLoad {
  const AttentionForwardParams& params;
  ForwardShared<Config>& shared;
  const bool elected = cute::elect_one_sync();
  typename Ring<Config::kStages>::Position keys_at{}, values_at{};
  RingPosition<1> queries_at{};

  /// Loads a tile of `rows` rows as panels of 64 columns.
  template <int kPanels>
  __device__ void load_tile(const CUtensorMap& map, Barrier& full, char* tile, int rows,
                            TileCoordinate from) const {
    if (!elected) return;
    full.arrive_and_expect(kPanels * panel_bytes(rows));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      load_panel(map, full, tile + panel * panel_bytes(rows), from);
      from.column += kPanelColumns;
    }
  }

  __device__ void load_queries(const ForwardItem& item) {
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      const int first = item.query_of<Config>(group);
      Barrier& full = shared.queries[group].full[0];
      shared.queries[group].wait_empty(queries_at);
      if (first < item.queries) {
        load_tile<Config::kKeyPanels>(params.q_map, full, shared.q[group], 64,
                                      {0, item.head, item.first_query + first, item.batch});
      } else if (elected) {
        full.arrive();
      }
    }
    queries_at.advance();
  }

  __device__ void load_keys(TileCoordinate from) {
    shared.keys.wait_empty(keys_at);
    load_tile<Config::kKeyPanels>(params.k_map, shared.keys.full[keys_at.stage],
                                  shared.k[keys_at.stage], Config::kKeys, from);
    keys_at.advance();
  }

  __device__ void load_values(TileCoordinate from) {
    shared.values.wait_empty(values_at);
    load_tile<Config::kValuePanels>(params.v_map, shared.values.full[values_at.stage],
                                    shared.v[values_at.stage], Config::kKeys, from);
    values_at.advance();
  }

  __device__ void load_item(const ForwardItem& item) {
    const int key_head = item.head / (params.problem.H / params.problem.HKV);
    const auto place = [&](int block) {
      return TileCoordinate{0, key_head, item.first_key + item.first_key_of<Config>(block),
                            item.batch};
    };
    int block = item.block_end - 1;
    if (block < item.block_begin) return;
    load_keys(place(block));
    load_queries(item);  // why second: they wait until the tile before has done with its own
    for (; block > item.block_begin; --block) {
      load_keys(place(block - 1));
      load_values(place(block));
    }
    load_values(place(block));
  }

  __device__ void run() {
    ForwardItems<Config> items(params);
    typename Ring<Config::kItemSlots>::Position at;
    const int ctas = static_cast<int>(gridDim.x);
    int index = static_cast<int>(blockIdx.x), first_group = 0;
    for (int round = 1;; ++round) {
      ForwardItem item = items.find(index);
      // why in turn: where tiles have fewer queries, each warpgroup has some time for itself.
      item.first_group = first_group;
      first_group = (first_group + item.groups()) % Config::kGroups;
      // Claims the next item now, since that takes a while. Without a ticket CTAs take turns, and
      // who was last in one round is first in the next: the items grow shorter.
      if (params.ticket == nullptr) {
        index = round * ctas +
                static_cast<int>(round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
      } else if (threadIdx.x == 0) {
        index = ctas + static_cast<int>(atomicAdd(params.ticket, 1u));
      }
      shared.item_ring.wait_empty(at);
      if (elected) {
        shared.items[at.stage] = item;
        shared.item_ring.full[at.stage].arrive();
      }
      at.advance();
      if (item.batch == ForwardItem::kNone) return;
      load_item(item);
      index = __shfl_sync(0xFFFFFFFFu, index, 0);
    }
  }
};

}  // namespace tandem::cuda::attention
