// The states that a forward saves for its backward: before every kSavedStateTokens tokens, from the
// registers in which they are operands, through the panels of o or, of 256 columns, panels of their
// own.
#pragma once

#include "cuda/gla/walk/output.cuh"
#include "cuda/gla/walk/products.cuh"

namespace tandem::cuda::gla {

/// Whether the state before a chunk is saved. Of dense batches, whose items begin at whole chunks.
template <class Config>
__device__ bool saves_state(const Item& item, int chunk) {
  const int time = item.before + item.template chunk_offset<Config>(chunk);
  return Config::kSavesStates && static_cast<unsigned>(time) % kSavedStateTokens == 0;
}

/// Stores 64 columns of K of it, from `first` on, that lie in `panel`.
template <class Config>
__device__ void store_saved_panel(const WalkParams& params, const Item& item, int chunk,
                                  int warpgroup, const char* panel, int first) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  if (!item.template has_head<Config>(warpgroup)) return;
  const int time = item.before + item.template chunk_offset<Config>(chunk);
  const int rows = static_cast<int>((problem.T + kSavedStateTokens - 1) / kSavedStateTokens);
  const TileCoordinate to{first, item.template head_of<Config>(warpgroup),
                          item.template column_of<Config>(warpgroup),
                          item.batch * rows + time / kSavedStateTokens};
  if (params.saves_by_tma) {
    if (threadIdx.x % 128 == 0) store_panel(params.states_map, panel, to);
    return;
  }
  Item place;
  place.batch = to.batch;
  const std::int64_t size = std::int64_t{problem.V} * problem.K;
  store_panel_rows<Element>(panel, {problem.saved_states, problem.H * size, problem.K, size}, place,
                            to.head, to.time, min(problem.V - to.time, 64), first,
                            problem.K - first, false);
}

/// Saves steps of it from `first` on, in fours, if it is saved: through panels of its own, to be
/// stored by finish_state, or of o. `turn`: of o's two panels, the one that nothing reads. A state
/// warpgroup.
template <class Config, int kSteps>
__device__ void save_state(const WalkParams& params, WalkShared<Config>& shared, const Item& item,
                           int chunk, int warpgroup, int turn, const StateOperand<kSteps>& operand,
                           int first) {
  if constexpr (Config::kSavesStates) {
    if (!saves_state<Config>(item, chunk)) return;
#pragma unroll
    for (int step = 0; step < kSteps; step += 4) {
      const int index = (first + step) / 4;
      if constexpr (Config::kSavedPanels > 0) {
        // why no wait: behind the state before this one's there was a store of o, which waited.
        char* const panel = shared.saved.panels[warpgroup][index];
#pragma unroll
        for (int i = 0; i < 4; ++i) store_rows(panel, i, operand[step + i]);
      } else {
        char* const panel = shared.o[warpgroup][(turn + index) % 2];
        // Only this thread's last store may still read a panel, the other one.
        if (threadIdx.x % 128 == 0) cute::tma_store_wait<1>();
        sync_warpgroup(2 + warpgroup);
#pragma unroll
        for (int i = 0; i < 4; ++i) store_rows(panel, i, operand[step + i]);
        fence_shared_for_async_proxy();
        sync_warpgroup(2 + warpgroup);
        store_saved_panel<Config>(params, item, chunk, warpgroup, panel, 64 * index);
      }
    }
  }
}

/// Stores it from panels of its own.
template <class Config>
__device__ void finish_state(const WalkParams& params, WalkShared<Config>& shared, const Item& item,
                             int chunk, int warpgroup) {
  if constexpr (Config::kSavedPanels > 0) {
    if (!saves_state<Config>(item, chunk)) return;
    fence_shared_for_async_proxy();
    sync_warpgroup(2 + warpgroup);
#pragma unroll 1
    for (int index = 0; index < Config::kSavedPanels; ++index) {
      store_saved_panel<Config>(params, item, chunk, warpgroup,
                                shared.saved.panels[warpgroup][index], 64 * index);
    }
  }
}

/// Makes the panel of this turn free for o, if a state was saved through it.
template <class Config>
__device__ void free_output_panel(const Item& item, int chunk, int warpgroup) {
  if (Config::kSavedPanels > 0 || !saves_state<Config>(item, chunk)) return;
  if (threadIdx.x % 128 == 0) wait_stores_read();
  sync_warpgroup(2 + warpgroup);
}

}  // namespace tandem::cuda::gla
