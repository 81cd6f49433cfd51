// What attention_weights' two backward kernels share: stages of weights, and how they are loaded.
#pragma once

#include "cuda/attention/reach.cuh"
#include "cuda/attention_weights/backward_params.h"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
struct BackwardShared {
  alignas(1024) char w[Config::kStages][Config::kGroups][panel_bytes(64)];
  alignas(1024) char d_w[Config::kStages][Config::kGroups][panel_bytes(64)];
  alignas(1024) char rows[Config::kStages][Config::kPanels][panel_bytes(64)];  // of k, or of q
  alignas(16) float row_means[Config::kStages][64];
  Ring<Config::kStages> ring;
};

/// The CTA's item of a round. Neighbours share a head; who was last in one round is first in the
/// next, since masks make items unequal.
__device__ inline int item_of_round(int round) {
  const int ctas = static_cast<int>(gridDim.x), own = static_cast<int>(blockIdx.x);
  return round * ctas + (round % 2 == 0 ? own : ctas - 1 - own);
}

template <class Config>
using BackwardPosition = typename Ring<Config::kStages>::Position;

/// Makes the barriers and warms what the kernel needs. All threads.
template <class Config>
__device__ void begin_backward(const BackwardParams& params, BackwardShared<Config>& shared) {
  if (threadIdx.x == 0) {
    shared.ring.init(1, 128 * Config::kGroups);
    fence_barriers_initialised();
  }
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.w_map, &params.d_w_map}) {
      prefetch_tensor_map(*map);
    }
  }
  __syncthreads();
}

/// Starts loading weights and their gradients for both warpgroups, whose panels lie `apart` from
/// each other. The stage will hold `more` bytes beside them and its rows. One thread.
template <class Config>
__device__ void load_weights(const BackwardParams& params, BackwardShared<Config>& shared,
                             BackwardPosition<Config> at, TileCoordinate from, TileCoordinate apart,
                             int more = 0) {
  Barrier& full = shared.ring.full[at.stage];
  shared.ring.wait_empty(at);
  full.arrive_and_expect(Config::kStageBytes + more);
#pragma unroll
  for (int group = 0; group < Config::kGroups; ++group) {
    load_panel(params.w_map, full, shared.w[at.stage][group], from);
    load_panel(params.d_w_map, full, shared.d_w[at.stage][group], from);
    from.column += apart.column;
    from.time += apart.time;
  }
}

/// Starts loading 64 rows of q or k. One thread.
template <class Config>
__device__ void load_other_rows(const CUtensorMap& map, BackwardShared<Config>& shared,
                                BackwardPosition<Config> at, TileCoordinate from) {
#pragma unroll
  for (int panel = 0; panel < Config::kPanels; ++panel) {
    load_panel(map, shared.ring.full[at.stage], shared.rows[at.stage][panel], from);
    from.column += kPanelColumns;
  }
}

/// A warpgroup's product with 64 rows of a stage, 16 of them by each of four operands.
using Operand = std::uint32_t[4][4];

/// Issues acc += A B.
template <class Config>
__device__ void add_product(float (&acc)[Config::kColumns / 2], const Operand& a,
                            const BackwardShared<Config>& shared, BackwardPosition<Config> at) {
  const std::uint64_t b = mn_major_descriptor(shared.rows[at.stage], 0);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_rs<typename Config::Element, Config::kColumns, Major::MN>(
        acc, a[step], move_descriptor(b, step * panel_bytes(16)), true);
  }
}

/// Keeps the low and high half of a pair where they are below `end`, zeroes the others.
__device__ inline std::uint32_t keep_below(std::uint32_t pair, int at, int end) {
  return pair & ((at < end ? 0x0000FFFFu : 0u) | (at + 1 < end ? 0xFFFF0000u : 0u));
}

}  // namespace tandem::cuda::attention_weights
