// The work of a CTA of attention_weights_forward_kernel, and what its roles share.
#pragma once

#include "cuda/attention/reach.cuh"
#include "cuda/attention_weights/forward_params.h"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::attention_weights {

/// Tiles of 64 queries of a head. Each warpgroup takes one in each turn, and goes through the keys
/// twice for it: for the sums, and for the weights.
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

  __device__ int turns() const { return (tiles + Config::kGroups - 1) / Config::kGroups; }
  /// A warpgroup's tile in a turn: whether there is one, its first query, where its queries lie.
  __device__ bool works(int group, int turn) const {
    return turn * Config::kGroups + group < tiles;
  }
  __device__ int query(int group, int turn) const {
    return first_query + 64 * (turn * Config::kGroups + group);
  }
  static __device__ RingPosition<Config::kQueryStages> queries(int turn) {
    constexpr int kStages = Config::kQueryStages;
    return {turn % kStages, static_cast<std::uint32_t>(turn / kStages & 1)};
  }
  /// Blocks of keys that a tile sees.
  __device__ int seen_blocks(int query) const {
    const int end = min(query + 64 + distance + right, keys);
    return (max(end, 0) + Config::kKeys - 1) / Config::kKeys;
  }
  /// Blocks of keys that a warpgroup multiplies in a turn: the weights of the last one are there
  /// with the sums.
  __device__ int own_blocks(int group, int turn, bool stores) const {
    return works(group, turn) ? max(seen_blocks(query(group, turn)) - (stores ? 1 : 0), 0) : 0;
  }
  /// Blocks that come by.
  __device__ int blocks(int turn, bool stores) const {
    int most = 0;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      most = max(most, own_blocks(group, turn, stores));
    }
    return most;
  }
};

template <class Config>
struct ForwardShared {
  alignas(1024) char q[Config::kGroups][Config::kQueryStages][Config::kQueryBytes];
  alignas(1024) char k[Config::kStages][Config::kKeyBytes];
  alignas(1024) char w[Config::kGroups][Config::kStoredHalves][panel_bytes(64)];
  Ring<Config::kQueryStages> queries[Config::kGroups];
  Ring<Config::kStages> keys;
  ForwardStrip<Config> strip;  // why here: registers are few
};

}  // namespace tandem::cuda::attention_weights
