#include "cuda/linear_scan/forward_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "cuda/gated_scan/variants.h"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::linear_scan {

TileShape tile_shape(Tiling tiling) {
  switch (tiling) {
    case Tiling::kAlone: return {"c64_t64_alone", 64, 64, 1, 64, false};
    case Tiling::kSmall: return {"c64_t64", 64, 64, 2, 32, false};
    case Tiling::kComposed: return {"composed", 1, 1, 1, 1, false};
    case Tiling::kChain: break;
  }
  return {"c128_t256_chain", 128, 256, 1, 1, true};
}

namespace {

/// Of a product x = u W^T in two parts, and a scan of it. What is kept costs nothing.
double predict_composed(const LinearScanForwardProblem& problem, const DeviceProperties& device) {
  const DeviceModel::LinearScan& model = device_model(device).linear_scan;
  const auto tokens = static_cast<double>(problem.B * problem.T);
  const double elements = tokens * problem.D;
  const double product =
      std::max({2.0 * elements * problem.d / model.flops_per_microsecond,
                2.0 * problem.d * (tokens + problem.D) / model.bytes_per_microsecond,
                model.composed_x * elements});
  const double scan = model.composed_scan * gated_scan::predict_of_product(problem, device);
  return model.composed_call + product + scan;
}

}  // namespace

double predict(const LinearScanForwardProblem& problem, Tiling tiling,
               const DeviceProperties& device) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (tiling == Tiling::kComposed) return predict_composed(problem, device);
  const DeviceModel::LinearScan& model = device_model(device).linear_scan;
  const int multiprocessors = std::max(device.multiprocessors, 1);
  const double kept =
      problem.x.data ? model.kept * static_cast<double>(problem.B * problem.T) * problem.D : 0.0;
  if (tiling == Tiling::kChain) {
    const std::int64_t columns = problem.B * ceil_div(problem.D, 128);
    const std::int64_t time_tiles = ceil_div(problem.T, 256);
    if (problem.D <= 64 || problem.T <= 128) return kNever;
    if (columns * time_tiles < multiprocessors) return kNever;
    const double product = model.chain_depth * problem.d;
    const double busy =
        static_cast<double>(columns * time_tiles) / multiprocessors * (model.chain_piece + product);
    const double wait = model.chain_wait + model.chain_wait_column * static_cast<double>(columns);
    return model.call + std::max(busy, static_cast<double>(time_tiles) * wait + product) + kept;
  }
  constexpr int kOfPiece = 8;  // small tiles
  const std::int64_t tiles = problem.B * ceil_div(problem.D, 64) * ceil_div(problem.T, 64);
  if ((tiles <= multiprocessors) != (tiling == Tiling::kAlone)) return kNever;
  const double pieces = std::max(static_cast<double>(tiles) / multiprocessors, 1.0) / kOfPiece;
  return model.call + pieces * (model.small_piece + model.small_depth * problem.d) + kept;
}

Tiling choose_tiling(const LinearScanForwardProblem& problem, const DeviceProperties& device) {
  constexpr Tiling kAll[] = {Tiling::kAlone, Tiling::kSmall, Tiling::kChain, Tiling::kComposed};
  return *std::min_element(std::begin(kAll), std::end(kAll), [&](Tiling a, Tiling b) {
    return predict(problem, a, device) < predict(problem, b, device);
  });
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
