#include "cuda/linear_scan/forward_plan.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::size_t append(std::size_t& bytes, std::int64_t size) {
  const std::size_t at = bytes;
  bytes += static_cast<std::size_t>(ceil_div(size, 256) * 256);
  return at;
}

}  // namespace

LinearScanTileShape tile_shape(LinearScanTiling tiling) {
  switch (tiling) {
    case LinearScanTiling::kAlone: return {"c64_t64_alone", 64, 64, 1, 64, false};
    case LinearScanTiling::kSmall: return {"c64_t64", 64, 64, 2, 32, false};
    case LinearScanTiling::kChain: break;
  }
  return {"c128_t256_chain", 128, 256, 1, 1, true};
}

LinearScanTiling choose_tiling(const LinearScanForwardProblem& problem, int multiprocessors) {
  const std::int64_t small = problem.B * ceil_div(problem.D, 64) * ceil_div(problem.T, 64);
  if (small <= multiprocessors) return LinearScanTiling::kAlone;
  // With so many columns that few tiles of each keep the machine busy, hardly any tile waits for
  // the previous one.
  const std::int64_t columns = problem.B * ceil_div(problem.D, 128);
  const std::int64_t tiles = columns * ceil_div(problem.T, 256);
  const bool many = 3 * columns >= multiprocessors && tiles >= multiprocessors;
  return many && problem.D > 64 && problem.T > 128 ? LinearScanTiling::kChain
                                                   : LinearScanTiling::kSmall;
}

LinearScanPlan plan_linear_scan(const LinearScanForwardProblem& problem, LinearScanTiling tiling,
                                int multiprocessors) {
  const LinearScanTileShape shape = tile_shape(tiling);
  LinearScanPlan plan;
  plan.time_tiles = ceil_div(problem.T, shape.tokens);
  plan.channel_tiles = ceil_div(problem.D, shape.channels);
  const std::int64_t columns = problem.B * plan.channel_tiles;
  plan.tiles = plan.time_tiles * columns;
  plan.blocks = static_cast<unsigned>(std::clamp<std::int64_t>(
      plan.tiles, 1, std::int64_t{shape.ctas} * std::max(multiprocessors, 1)));
  const std::int64_t of_column = std::int64_t{4} * shape.channels;
  const std::int64_t states = ceil_div(plan.time_tiles, shape.group_tiles);
  std::size_t& bytes = plan.workspace_bytes;
  plan.maps = append(bytes, shape.chain ? 0 : 2 * of_column * plan.tiles);
  plan.states = append(bytes, of_column * states * columns);
  plan.ticket = append(bytes, 4);
  return plan;
}

}  // namespace tandem::cuda
