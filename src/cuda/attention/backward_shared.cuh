// What the roles of attention_backward_kernel share: shared memory and barriers.
#pragma once

#include "cuda/attention/backward_config.h"
#include "cuda/attention/backward_item.cuh"
#include "cuda/attention/row_loader.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::attention {

template <class Config>
struct BackwardShared {
  static constexpr int kQueryBytes = Config::kKeyPanels * panel_bytes(Config::kQueries);
  static constexpr int kGradientBytes = Config::kValuePanels * panel_bytes(Config::kQueries);
  static constexpr int kRowBytes = Config::kQueries * 4;

  alignas(1024) char k[Config::kKeyPanels * panel_bytes(Config::kKeys)];
  alignas(1024) char v[Config::kValuePanels * panel_bytes(Config::kKeys)];
  alignas(1024) char q[Config::kQueryStages][kQueryBytes];
  alignas(1024) char d_o[Config::kGradientStages][kGradientBytes];
  // dS, and P where the warpgroups need each other's: [query, key].
  alignas(1024) char scores[Config::kScoreStages + Config::kSplitColumns]
                           [Config::kKeys / 64 * panel_bytes(Config::kQueries)];
  alignas(1024) char dq[Config::kSumStages][std::max(Config::kSumBytes, 16)];
  alignas(16) float log_sum_exp[Config::kQueryStages][Config::kQueries];
  alignas(16) float row_products[Config::kGradientStages][Config::kQueries];

  int query_tiles[Config::kQueryStages];  // whose q these are

  Ring<Config::kItemSlots> item_ring;
  Ring<1> keys;
  Ring<1> values;
  RowLoader rows;
  Ring<Config::kQueryStages> queries;       // q and log_sum_exp
  Ring<Config::kGradientStages> gradients;  // d_o and row_products
  Ring<Config::kScoreStages> d_scores;      // full: where a third warpgroup multiplies
  Ring<Config::kSumStages> sums;
  // The step before a summing thread's has had its buffer.
  Barrier begun[std::max(Config::kSumThreads, 1)];
  BackwardItem items[Config::kItemSlots];

  __device__ char* weights() { return scores[Config::kScoreStages]; }
};

/// Where the `count`th use of a ring lies.
template <int kStages>
__device__ inline RingPosition<kStages> ring_position(unsigned count) {
  return {static_cast<int>(count % kStages), count / kStages & 1};
}

/// Arrives once per warp, where only products have read what the barrier guards: racecheck follows
/// threads, and takes what the other lanes have read for unguarded.
__device__ inline void arrive_warp(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}

/// Waits for both warpgroups that multiply.
__device__ inline void sync_workers() { cutlass::arch::NamedBarrier::sync(256, kWorkersBarrier); }

}  // namespace tandem::cuda::attention
