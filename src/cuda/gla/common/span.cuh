// What a span of tokens does to the state: the loop that gla_state_kernel and split walks share.
//
// From the last chunk to the first, with R the factor of everything behind a chunk:
//   St = St + R (Vt 2^(G_C - G_j)) K,   R = R 2^G_C
// why backwards: the walk over the same tokens that follows a split begins with the chunks that
// were read last, which the L2 still holds. why the product is scaled and not the operand: each
// operand is then rounded as in a forward walk.
#pragma once

#include "cuda/gla/common/item.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/common/tiles.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

/// Zeroes the rows of a partial chunk that belong to the next sequence: each warpgroup its own
/// columns of V, and its share of K, which all of them read.
template <class Config, class Stage>
__device__ void clear_partial_chunk(Stage& stage, int valid, int warpgroup) {
  constexpr int kKeyPanels = Config::kKeyDim / kPanelColumns;
  for (int panel = warpgroup; panel < kKeyPanels; panel += Config::kStateWarpgroups) {
    clear_rows(stage.k + panel * panel_bytes(64), panel_bytes(64), valid);
  }
  clear_rows(stage.v + warpgroup * panel_bytes(64), panel_bytes(64), valid);
  fence_shared_for_async_proxy();
  cutlass::arch::NamedBarrier::sync(128 * Config::kStateWarpgroups, 0);
}

/// Adds `count` chunks, from the last one back, to St, `kTiles` tiles of `2 * kCount` columns of K,
/// by products of at most `kColumns`, and returns the factor from the state before them. One state
/// warpgroup. `prepare(stage, chunk)` runs once a stage is full; all threads of the role arrive on
/// its empty barrier.
template <class Config, int kColumns, class Shared, int kTiles, int kCount, class Prepare>
__device__ float sum_span(float (&state)[kTiles][kCount], Shared& shared, int last, int count,
                          int warpgroup, typename Shared::InputRing::Position& at,
                          Prepare prepare) {
  using Element = typename Config::Element;
  constexpr int kSteps = Config::kChunk / 16;
  constexpr int kProducts = 2 * kCount / kColumns;  // per tile
  float later = 1.0f;
  for (int chunk = last; chunk > last - count; --chunk, at.advance()) {
    auto& stage = shared.stages[at.stage];
    const auto& decay = shared.decay_of(at.stage, warpgroup);
    shared.input.wait_full(at);
    prepare(stage, chunk);
    // why first: an arrival does not wait for loads under way, a product for its operands' does.
    const float through = decay.state_to_state;
    std::uint32_t values[kSteps][4];
    load_decayed_values<Element, 0, kSteps>(
        values, stage.v + warpgroup * panel_bytes(Config::kChunk), decay.to_state);
#pragma unroll
    for (int i = 0; i < kTiles * kProducts; ++i) {
      const char* k = stage.k + i * kColumns / kPanelColumns * panel_bytes(Config::kChunk);
      float product[kColumns / 2];
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        wgmma_rs<Element, kColumns, Major::MN>(product, values[step], mn_major_descriptor(k, step),
                                               step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      fence_registers(product);
      float* sum = &state[i / kProducts][i % kProducts * kColumns / 2];
#pragma unroll
      for (int j = 0; j < kColumns / 2; ++j) sum[j] += later * product[j];
    }
    later *= through;
    shared.input.empty[at.stage].arrive();
  }
  return later;
}

}  // namespace tandem::cuda::gla
