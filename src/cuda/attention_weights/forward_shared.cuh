// The work of a CTA of attention_weights_forward_kernel, and what its roles share.
#pragma once

#include "cuda/attention/reach.cuh"
#include "cuda/attention_weights/forward_params.h"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::attention_weights {

/// Tiles of 64 queries of a head. Each warpgroup takes one after the other, and goes through the
/// keys twice for it: for the sums, and for the weights. Every other warpgroup is one pass behind,
/// so that sums are found while weights are stored.
template <class Config>
struct ForwardStrip {
  int batch;
  int head;
  int first_query;
  int tiles;
  int distance;  // of query 0 from key 0
  int keys;
  int right;  // keys behind its own that a query sees

  __device__ ForwardStrip(const ForwardParams& params, int index) {
    const AttentionWeightsForwardProblem& problem = params.problem;
    const int queries = static_cast<int>(problem.TQ);
    const int all = (queries + 63) / 64, most = Config::kGroups * params.strip;
    const int strips = (all + most - 1) / most;
    batch = index / strips / problem.H;
    head = index / strips % problem.H;
    const int first = (strips - 1 - index % strips) * most;  // those that see most keys begin
    first_query = 64 * first;
    tiles = min(all - first, most);
    keys = static_cast<int>(problem.TK);
    distance = keys - queries;
    right = attention::Reach(problem.mask).right;
  }

  static __device__ int lag(int group) { return group % 2; }
  __device__ int passes() const {
    const auto behind = [&](int group) {  // its last pass
      const int own = (tiles - group + Config::kGroups - 1) / Config::kGroups;
      return own > 0 ? lag(group) + 2 * own : 0;
    };
    return max(behind(0), behind(1));
  }

  /// A warpgroup's tile in a pass, as its first query.
  struct Turn {
    bool works;
    bool stores;  // the weights; else it finds sums
    int query;
    RingPosition<Config::kQueryStages> queries;
  };
  __device__ Turn turn(int group, int pass) const {
    const int own = pass - lag(group);
    const int turn = own / 2, tile = turn * Config::kGroups + group;
    constexpr int kStages = Config::kQueryStages;
    return {own >= 0 && tile < tiles,
            own % 2 == 1,
            first_query + 64 * tile,
            {turn % kStages, static_cast<std::uint32_t>(turn / kStages & 1)}};
  }
  /// Blocks of keys that a tile sees.
  __device__ int seen_blocks(int query) const {
    const int end = min(query + 64 + distance + right, keys);
    return (max(end, 0) + Config::kKeys - 1) / Config::kKeys;
  }
  /// Blocks of keys that a warpgroup multiplies: the weights of the last one are there with the
  /// sums.
  __device__ int own_blocks(const Turn& turn) const {
    return turn.works ? max(seen_blocks(turn.query) - (turn.stores ? 1 : 0), 0) : 0;
  }
  /// Blocks that come by in a pass.
  __device__ int blocks(int pass) const {
    int most = 0;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      most = max(most, own_blocks(turn(group, pass)));
    }
    return most;
  }
};

template <class Config>
struct ForwardShared {
  alignas(1024) char q[Config::kGroups][Config::kQueryStages][Config::kQueryBytes];
  alignas(1024) char k[Config::kStages][Config::kKeyBytes];
  alignas(1024) char w[Config::kGroups][Config::kKeys / 64][panel_bytes(64)];
  Ring<Config::kQueryStages> queries[Config::kGroups];
  Ring<Config::kStages> keys;
  ForwardStrip<Config> strip;  // why here: registers are few
};

}  // namespace tandem::cuda::attention_weights
