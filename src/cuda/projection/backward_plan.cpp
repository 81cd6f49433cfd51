// How projection_backward's products take their tiles, by predicted time, and a call's workspace.
// Host only.
#include "cuda/projection/backward_plan.h"

#include <algorithm>
#include <limits>

#include "cuda/gemm/matrix.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda::projection {
namespace {

using gemm::must_copy;

/// Tiles of all d_weight that are products.
std::int64_t weight_tiles(const ProjectionBackwardProblem& problem, int columns) {
  std::int64_t tiles = 0;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionBackwardSegment& segment = problem.segments[i];
    if (segment.d_weight.data == nullptr || !has_dz(problem, segment)) continue;
    tiles += ceil_div(problem.d, gemm::kTileRows) * ceil_div(segment.columns, columns);
  }
  return tiles;
}

/// Into how many slices the rows are cut for the gradient of heads: as many as keep a device busy,
/// whichever it is.
int head_slices(const ProjectionBackwardProblem& problem,
                const ProjectionBackwardSegment& segment) {
  constexpr int kMost = 528, kWarps = 8, kColumns = 1024;  // of a warp at once
  if (segment.kept != ProjectionKept::kHeads) return 1;
  const std::int64_t slices = ceil_div(problem.M * ceil_div(segment.columns, kColumns), kWarps);
  return static_cast<int>(
      std::clamp<std::int64_t>(slices, 1, std::min<std::int64_t>(kMost, problem.M)));
}

/// Steps of a tile of dx.
std::int64_t input_steps(const ProjectionBackwardProblem& problem) {
  std::int64_t steps = 0;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionBackwardSegment& segment = problem.segments[i];
    if (has_dz(problem, segment)) steps += ceil_div(segment.columns, gemm::kTileDepth);
  }
  return steps;
}

/// How a product would take its tiles, which with `splits` clusters do.
gemm::TailPlan plan_input(const ProjectionBackwardProblem& problem,
                          const BackwardVariant::Input& input, const DeviceProperties& device,
                          bool batch_invariant) {
  const std::int64_t steps = input_steps(problem);
  const std::int64_t row_tiles = ceil_div(problem.M, gemm::kTileRows);
  const std::int64_t column_tiles = ceil_div(problem.d, input.columns);
  gemm::TailPlan plan;
  if (input.splits) {
    plan.time = batch_invariant
                    ? std::numeric_limits<double>::infinity()
                    : gemm::predict_split(row_tiles, column_tiles, steps, input.columns, device);
  } else if (batch_invariant) {
    plan.time =
        gemm::predict_tiles(row_tiles, column_tiles, steps, input.columns, device.multiprocessors);
  } else {
    plan = gemm::plan_tail(row_tiles, column_tiles, steps, input.columns, device.multiprocessors);
  }
  return plan;
}

gemm::TailPlan plan_weight(const ProjectionBackwardProblem& problem,
                           const BackwardVariant::Weight& weight, const DeviceProperties& device) {
  const std::int64_t tiles = weight_tiles(problem, weight.columns);
  const std::int64_t steps = ceil_div(problem.M, gemm::kTileDepth);
  // All as tiles of rows: both operands are activations, and none waits for weights.
  if (!weight.splits) {
    return gemm::plan_tail(tiles, 1, steps, weight.columns, device.multiprocessors);
  }
  constexpr double kStep = 0.37, kExchange = 3.9;  // predict_split's steps wait for weights
  gemm::TailPlan plan;
  plan.time = tiles > device.clusters_of(gemm::kSplitParts)
                  ? std::numeric_limits<double>::infinity()
                  : kExchange + kStep * static_cast<double>(ceil_div(steps, gemm::kSplitParts));
  return plan;
}

/// Lets d_weight's product run beside dx's where that is quicker than what the plan has: its tiles
/// whole, or all of them in parts.
void choose_beside(const BackwardVariant& variant, const ProjectionBackwardProblem& problem,
                   int multiprocessors, BackwardPlan& plan) {
  constexpr double kBetween = 6.0;     // from one product's end to the other's begin
  constexpr double kSumsBeside = 1.5;  // until sums begin, which wait for both
  // Beside d_weight, steps of narrow tiles of dx are slower the more of them run at once.
  constexpr int kNarrow = 64, kManyNarrow = 56;
  constexpr double kNarrowStep = 0.13;  // for as many again
  const auto time_of_tile = [&](std::int64_t row_tiles, std::int64_t steps, int columns) {
    return gemm::predict_waves(
        multiprocessors, multiprocessors, steps, gemm::products_of_step(columns, row_tiles),
        gemm::weights_of_step(columns, row_tiles), gemm::end_of_tile(columns));
  };
  const std::int64_t row_tiles = ceil_div(problem.M, gemm::kTileRows);
  const std::int64_t steps_of_dx = input_steps(problem);
  const std::int64_t steps = ceil_div(problem.M, gemm::kTileDepth);
  plan.weight_beside.time = kBetween + plan.input_tail.time + plan.weight_tail.time;
  const auto consider = [&](std::size_t weight, std::int64_t tiles, const gemm::TailPlan& tail) {
    const int columns = variant.weights[weight].columns;
    const gemm::Tiles product{tiles * tail.parts,
                              time_of_tile(tiles, ceil_div(steps, tail.parts), columns)};
    const double sums = tail.tiles > 0 ? kSumsBeside + tail.sums_time(columns) : 0.0;
    for (std::size_t i = 0; i < variant.inputs.size(); ++i) {
      const BackwardVariant::Input& input = variant.inputs[i];
      if (input.splits) continue;
      const gemm::Tiles before{row_tiles * ceil_div(problem.d, input.columns),
                               time_of_tile(row_tiles, steps_of_dx, input.columns)};
      gemm::BesidePlan one = gemm::plan_beside(before, product, multiprocessors);
      one.time += sums;
      if (input.columns == kNarrow) {
        const auto at_once =
            static_cast<double>(std::min<std::int64_t>(before.count, multiprocessors));
        one.time += kNarrowStep * static_cast<double>(steps_of_dx) *
                    std::max(at_once / kManyNarrow - 1.0, 0.0);
      }
      if (!(one.time < plan.weight_beside.time)) continue;
      plan.beside = true;
      plan.weight_beside = one;
      plan.input = static_cast<int>(i);
      plan.weight = static_cast<int>(weight);
      plan.weight_tail = tail;
    }
  };
  for (std::size_t i = 0; i < variant.weights.size(); ++i) {
    const int columns = variant.weights[i].columns;
    if (variant.weights[i].splits) continue;
    const std::int64_t tiles = weight_tiles(problem, columns);
    consider(i, tiles, {});
    if (tiles >= multiprocessors) continue;  // a tail is not all of them
    const gemm::TailPlan cut = gemm::plan_tail(tiles, 1, steps, columns, multiprocessors);
    if (cut.tiles > 0) consider(i, tiles, cut);
  }
  if (plan.beside) plan.input_tail = {};
}

}  // namespace

bool has_dz(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment) {
  return problem.M > 0 && segment.columns > 0 && segment.d_out.data != nullptr;
}

std::string reason_against(const BackwardVariant& variant,
                           const ProjectionBackwardProblem& problem) {
  if (problem.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(problem.dtype);
  }
  const int columns = variant.inputs.front().columns;
  const std::int64_t column_tiles = std::max<std::int64_t>(ceil_div(problem.d, columns), 1);
  if (problem.M > kMaxIndex - gemm::kTileRows ||
      ceil_div(problem.M, gemm::kTileRows) > kMaxIndex / column_tiles ||
      weight_tiles(problem, columns) > kMaxIndex) {
    return "takes M below 2^31 - 128 and at most 2^31 - 1 tiles, got M " +
           std::to_string(problem.M) + " and d " + std::to_string(problem.d);
  }
  return "";
}

BackwardPlan plan_backward(const BackwardVariant& variant, const ProjectionBackwardProblem& problem,
                           const DeviceProperties& device, bool batch_invariant) {
  BackwardPlan plan;
  const bool wants_dx = problem.dx.data != nullptr && problem.M > 0 && problem.d > 0;
  const bool wants_d_weight = weight_tiles(problem, gemm::kTileRows) > 0;
  const auto choose_quickest = [](const auto& products, int& index, gemm::TailPlan& best,
                                  const auto& plan_of) {
    best.time = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < products.size(); ++i) {
      const gemm::TailPlan one = plan_of(products[i]);
      if (!(one.time < best.time)) continue;
      index = static_cast<int>(i);
      best = one;
    }
  };
  choose_quickest(variant.inputs, plan.input, plan.input_tail,
                  [&](const BackwardVariant::Input& input) {
                    return plan_input(problem, input, device, batch_invariant);
                  });
  choose_quickest(
      variant.weights, plan.weight, plan.weight_tail,
      [&](const BackwardVariant::Weight& weight) { return plan_weight(problem, weight, device); });
  plan.copies_x = wants_d_weight && must_copy(problem.x, problem.dtype, problem.M, problem.d);
  if (wants_dx && wants_d_weight && !plan.copies_x && problem.x.data != problem.dx.data) {
    choose_beside(variant, problem, device.multiprocessors, plan);
  }
  plan.bias_slices = static_cast<int>(std::clamp<std::int64_t>(problem.M / 256, 1, 64));

  WorkspaceLayout workspace;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionBackwardSegment& segment = problem.segments[i];
    BackwardPlan::Segment& to = plan.segments[i];
    if (!has_dz(problem, segment)) continue;
    const bool products = problem.dx.data != nullptr || segment.d_weight.data != nullptr;
    to.makes_dz =
        (segment.kept != ProjectionKept::kNothing ||
         (products && (segment.out_dtype == DType::kFloat32 ||
                       must_copy(segment.d_out, problem.dtype, problem.M, segment.columns)))) &&
        (products || segment.d_bias != nullptr || segment.d_head_norm_weight != nullptr);
    to.copies_weight = problem.dx.data != nullptr &&
                       must_copy(segment.weight, problem.dtype, segment.columns, problem.d);
    to.dz = workspace.add(to.makes_dz ? problem.M * gemm::padded(segment.columns) * 2 : 0);
    to.weight = workspace.add(to.copies_weight ? segment.columns * gemm::padded(problem.d) * 2 : 0);
    to.head_slices = head_slices(problem, segment);
    to.head_sums = workspace.add(segment.d_head_norm_weight != nullptr
                                     ? std::int64_t{to.head_slices} * segment.head_width * 4
                                     : 0);
    to.bias_sums = workspace.add(
        segment.d_bias != nullptr ? std::int64_t{plan.bias_slices} * segment.columns * 4 : 0);
  }
  if (problem.dx.data != nullptr) {
    plan.input_sums = workspace.add(plan.input_tail.sums_bytes(variant.inputs[plan.input].columns));
  }
  if (wants_d_weight) {
    plan.weight_sums =
        workspace.add(plan.weight_tail.sums_bytes(variant.weights[plan.weight].columns));
  }
  plan.x = workspace.add(plan.copies_x ? problem.M * gemm::padded(problem.d) * 2 : 0);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::projection
