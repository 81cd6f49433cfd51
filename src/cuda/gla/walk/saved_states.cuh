// The states that a forward saves for its backward: before every kSavedStateTokens tokens, from the
// registers in which they are operands, through the panels of o.
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

/// Saves 64 columns of K of it, from `first` on, of which `operand` has the four steps, by way of
/// `panel`, which no store but this thread's last one may still be reading. A state warpgroup.
template <class Config>
__device__ void save_panel(const WalkParams& params, const Item& item, int chunk, int warpgroup,
                           const std::uint32_t (*operand)[4], int first, char* panel) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  const bool stores = threadIdx.x % 128 == 0;
  if (stores) cute::tma_store_wait<1>();
  sync_warpgroup(2 + warpgroup);
#pragma unroll
  for (int step = 0; step < 4; ++step) store_rows(panel, step, operand[step]);
  fence_shared_for_async_proxy();
  sync_warpgroup(2 + warpgroup);
  if (!item.template has_head<Config>(warpgroup)) return;
  const int time = item.before + item.template chunk_offset<Config>(chunk);
  const int rows = static_cast<int>((problem.T + kSavedStateTokens - 1) / kSavedStateTokens);
  const TileCoordinate to{first, item.template head_of<Config>(warpgroup),
                          item.template column_of<Config>(warpgroup),
                          item.batch * rows + time / kSavedStateTokens};
  if (params.saves_by_tma) {
    if (stores) store_panel(params.states_map, panel, to);
    return;
  }
  Item place;
  place.batch = to.batch;
  const std::int64_t size = std::int64_t{problem.V} * problem.K;
  store_panel_rows<Element>(panel, {problem.saved_states, problem.H * size, problem.K, size}, place,
                            to.head, to.time, min(problem.V - to.time, 64), first,
                            problem.K - first, false);
}

/// Saves steps of it from `first` on, in fours, if it is saved. `turn`: of o's two panels, the one
/// that nothing reads.
template <class Config, int kSteps>
__device__ void save_state(const WalkParams& params, WalkShared<Config>& shared, const Item& item,
                           int chunk, int warpgroup, int turn, const StateOperand<kSteps>& operand,
                           int first) {
  if constexpr (Config::kSavesStates) {
    if (!saves_state<Config>(item, chunk)) return;
#pragma unroll
    for (int step = 0; step < kSteps; step += 4) {
      const int index = (first + step) / 4;
      save_panel<Config>(params, item, chunk, warpgroup, operand + step, 64 * index,
                         shared.o[warpgroup][(turn + index) % 2]);
    }
  }
}

/// Makes the panel of this turn free for o, if a state was saved.
template <class Config>
__device__ void finish_saving(const Item& item, int chunk, int warpgroup) {
  if (!saves_state<Config>(item, chunk)) return;
  if (threadIdx.x % 128 == 0) wait_stores_read();
  sync_warpgroup(2 + warpgroup);
}

}  // namespace tandem::cuda::gla
