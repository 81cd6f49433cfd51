#include "cuda/linear_scan/forward_plan.h"

#include <algorithm>

#include "cuda/runtime/plan.h"

namespace tandem::cuda::linear_scan {

TileShape tile_shape(Tiling tiling) {
  switch (tiling) {
    case Tiling::kAlone: return {"c64_t64_alone", 64, 64, 1, 64, false};
    case Tiling::kSmall: return {"c64_t64", 64, 64, 2, 32, false};
    case Tiling::kChain: break;
  }
  return {"c128_t256_chain", 128, 256, 1, 1, true};
}

Tiling choose_tiling(const LinearScanForwardProblem& problem, const DeviceProperties& device) {
  const int multiprocessors = device.multiprocessors;
  const std::int64_t small = problem.B * ceil_div(problem.D, 64) * ceil_div(problem.T, 64);
  if (small <= multiprocessors) return Tiling::kAlone;
  // Large tiles read u and the weight less often, but each waits for the one before it.
  const std::int64_t columns = problem.B * ceil_div(problem.D, 128);
  const std::int64_t tiles = columns * ceil_div(problem.T, 256);
  const DeviceModel::LinearScan& model = device_model(device).linear_scan;
  const double small_tiles = columns * (model.small_tiles + model.small_tiles_column * problem.d);
  const bool many = small_tiles >= model.chain_step && tiles >= multiprocessors;
  return many && problem.D > 64 && problem.T > 128 ? Tiling::kChain : Tiling::kSmall;
}

ForwardPlan plan_forward(const LinearScanForwardProblem& problem, Tiling tiling,
                         const DeviceProperties& device) {
  const TileShape shape = tile_shape(tiling);
  ForwardPlan plan;
  plan.time_tiles = ceil_div(problem.T, shape.tokens);
  plan.channel_tiles = ceil_div(problem.D, shape.channels);
  const std::int64_t columns = problem.B * plan.channel_tiles;
  plan.tiles = plan.time_tiles * columns;
  plan.blocks = static_cast<unsigned>(std::clamp<std::int64_t>(
      plan.tiles, 1, std::int64_t{shape.ctas} * std::max(device.multiprocessors, 1)));
  const std::int64_t of_column = std::int64_t{4} * shape.channels;
  const std::int64_t states = ceil_div(plan.time_tiles, shape.group_tiles);
  WorkspaceLayout workspace;
  plan.maps = workspace.add(shape.chain ? 0 : 2 * of_column * plan.tiles);
  plan.states = workspace.add(of_column * states * columns);
  plan.ticket = workspace.add(4);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::linear_scan
