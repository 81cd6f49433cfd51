// projection_backward on CUDA: dz where d_out is not it already, then dx and d_weight by one matrix
// product each over all segments, and d_bias. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>

#include "cuda/gemm/matrix.h"
#include "cuda/gemm/predict.h"
#include "cuda/projection/backward_plan.h"
#include "cuda/projection/forward_plan.h"
#include "cuda/projection/heads_plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/workspace.h"
#include "ops/projection.h"

namespace tandem::cuda::projection {
namespace {

using gemm::as_tokens, gemm::Layout, gemm::matrix_extents, gemm::must_copy;

constexpr const char* kBackward = "projection_backward";

template <class Element>
void add_variant(std::vector<BackwardVariant>& table, DType dtype) {
  table.push_back({std::string(kBackward) + ".sm90." + to_string(dtype),
                   dtype,
                   &launch_gradient<Element>,
                   &launch_heads_gradient<Element>,
                   &launch_head_sum<Element>,
                   {{64, false, &launch_input<Element, 64, 1>},
                    {128, false, &launch_input<Element, 128, 1>},
                    {192, false, &launch_input<Element, 192, 1>},
                    {256, false, &launch_input<Element, 256, 1>},
                    {64, true, &launch_input<Element, 64, gemm::kSplitParts>},
                    {128, true, &launch_input<Element, 128, gemm::kSplitParts>},
                    {192, true, &launch_input<Element, 192, gemm::kSplitParts>}},
                   {{128, false, &launch_weight<Element, 128, 1>},
                    {192, false, &launch_weight<Element, 192, 1>},
                    {256, false, &launch_weight<Element, 256, 1>},
                    {128, true, &launch_weight<Element, 128, gemm::kSplitParts>}},
                   &launch_column_sums<Element>,
                   &gemm::launch_sum_slices<Element>});
}

/// Whether a segment has anything to pass back: columns of dz that are not all 0.
bool has_dz(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment) {
  return problem.M > 0 && segment.columns > 0 && segment.d_out.data != nullptr;
}

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

/// Whether rows of elements of so many bytes begin at multiples of 16.
bool lies_well(const MatrixTensor& matrix, int size) {
  return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
         matrix.row_stride * size % 16 == 0;
}

/// SegmentGradient::regular.
bool is_regular(const ProjectionBackwardSegment& segment) {
  const int size = segment.out_dtype == DType::kFloat32 ? 4 : 2;
  const bool heads = segment.kept != ProjectionKept::kNormalized ||
                     (segment.head_width & (segment.head_width - 1)) == 0;
  return heads && segment.columns % 8 == 0 && lies_well(segment.d_out, size) &&
         lies_well(segment.slope, size) && lies_well(segment.out, size);
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
                   const DeviceProperties& device, BackwardPlan& plan) {
  constexpr double kBetween = 2.0;     // from one product's end to the other's begin
  constexpr double kSumsBeside = 1.5;  // until sums begin, which wait for both
  const int multiprocessors = device.multiprocessors;
  const auto time_of_tile = [&](std::int64_t row_tiles, std::int64_t steps, int columns) {
    return gemm::predict_waves(
        multiprocessors, multiprocessors, steps, gemm::products_of_step(columns, row_tiles),
        gemm::weights_of_step(columns, row_tiles), gemm::end_of_tile(columns));
  };
  const std::int64_t row_tiles = ceil_div(problem.M, gemm::kTileRows);
  const std::int64_t steps_of_dx = input_steps(problem);
  const std::int64_t steps = ceil_div(problem.M, gemm::kTileDepth);
  plan.weight_beside.time = kBetween + plan.input_tail.time + plan.weight_tail.time;
  for (std::size_t j = 0; j < variant.weights.size(); ++j) {
    const auto& [columns, splits, launch] = variant.weights[j];
    if (splits) continue;
    const std::int64_t tiles = weight_tiles(problem, columns);
    const gemm::TailPlan cut = gemm::plan_tail(tiles, 1, steps, columns, multiprocessors);
    for (const gemm::TailPlan& tail : {gemm::TailPlan{}, cut}) {
      if (tail.tiles > 0 && tail.tiles < tiles) continue;
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
        if (!(one.time < plan.weight_beside.time)) continue;
        plan.beside = true;
        plan.weight_beside = one;
        plan.input = static_cast<int>(i);
        plan.weight = static_cast<int>(j);
        plan.weight_tail = tail;
      }
    }
  }
  if (plan.beside) plan.input_tail = {};
}

struct Call {
  const ProjectionBackwardProblem& problem;
  const BackwardVariant& variant;
  const BackwardPlan& plan;
  char* base;
  int multiprocessors;
  void* stream;

  MatrixTensor dz(int i) const {
    const ProjectionBackwardSegment& segment = problem.segments[i];
    if (!plan.segments[i].makes_dz) return segment.d_out;
    return {base + plan.segments[i].dz, gemm::padded(segment.columns)};
  }

  /// A matrix of d columns, or its copy in the workspace.
  MatrixTensor readable(const MatrixTensor& matrix, std::int64_t rows, bool copies,
                        std::size_t offset) const {
    if (!copies) return matrix;
    return gemm::copy_matrix(kBackward, matrix, rows, problem.d, base + offset, stream);
  }

  void make_dz() const {
    GradientParams params{};
    params.M = problem.M;
    bool any = false, any_heads = false;
    for (int i = 0; i < problem.segment_count; ++i) {
      if (!plan.segments[i].makes_dz) continue;
      const ProjectionBackwardSegment& from = problem.segments[i];
      if (from.kept == ProjectionKept::kHeads) {
        any_heads = true;
        continue;
      }
      params.segments[i] = {
          from.columns, from.kept,  from.head_width, from.out_dtype == DType::kFloat32,
          from.d_out,   from.slope, from.out,        from.inverse_norm,
          dz(i)};
      SegmentGradient& to = params.segments[i];
      const int width = std::max(from.head_width, 1);
      to.chunk_columns = kGradientColumns / width * width;
      to.chunks = static_cast<int>(ceil_div(from.columns, to.chunk_columns));
      to.regular = is_regular(from);
      any = true;
    }
    if (any) variant.gradient(params, stream);
    if (any_heads) differentiate_heads();
  }

  /// dz of heads, and slices of the sums that make_d_head_norm_weights adds up.
  void differentiate_heads() const {
    HeadsGradientParams params;
    params.M = problem.M;
    params.rope = rope_params(problem.rope);
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& from = problem.segments[i];
      if (!plan.segments[i].makes_dz || from.kept != ProjectionKept::kHeads) continue;
      HeadsGradientParams::Segment& to = params.segments[params.count++];
      to.columns = from.columns;
      to.head_width = from.head_width;
      to.heads = head_segment(from.heads);
      to.d_out = from.d_out;
      to.fp32 = from.out_dtype == DType::kFloat32;
      to.pre_norm = from.heads.pre_norm;
      to.rstd = from.heads.rstd;
      to.dz = dz(i);
      to.slices = plan.segments[i].head_slices;
      if (from.d_head_norm_weight != nullptr) to.partial_sums = head_sums(i);
      to.regular = lies_well(to.d_out, to.fp32 ? 4 : 2) && lies_well(to.pre_norm, 2);
    }
    variant.heads_gradient(params, stream);
  }

  float* head_sums(int i) const {
    return reinterpret_cast<float*>(base + plan.segments[i].head_sums);
  }

  void make_d_head_norm_weights() const {
    HeadSumParams params;
    params.accumulate = problem.accumulate;
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = problem.segments[i];
      if (segment.d_head_norm_weight == nullptr) continue;
      params.segments[params.count++] = {
          head_sums(i), has_dz(problem, segment) ? plan.segments[i].head_slices : 0,
          segment.head_width, segment.d_head_norm_weight,
          segment.d_head_norm_weight_dtype == DType::kFloat32};
    }
    if (params.count > 0) variant.head_sum(params, stream);
  }

  void make_dx() const {
    const BackwardVariant::Input& input = variant.inputs[plan.input];
    InputParams params{};
    params.B = 1;
    params.rows = static_cast<int>(problem.M);
    params.set_columns(0, problem.d, input.columns);
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = problem.segments[i];
      if (!has_dz(problem, segment)) continue;
      params.depth[i] = segment.columns;
      params.a[i] = encode(gemm::plan_operand(as_tokens(dz(i)), problem.dtype,
                                              matrix_extents(problem.M, segment.columns),
                                              gemm::box_rows_a(Layout::kNN, problem.M)));
      const MatrixTensor weight = readable(segment.weight, segment.columns,
                                           plan.segments[i].copies_weight, plan.segments[i].weight);
      params.b[i] =
          encode(gemm::plan_operand(as_tokens(weight), problem.dtype,
                                    matrix_extents(segment.columns, problem.d), gemm::kBoxRows));
    }
    params.dx =
        gemm::make_target(problem.dx, problem.dtype, problem.dtype, problem.M, problem.d, true);
    gemm::cut_tail(params, Layout::kNN, plan.input_tail.tiles, plan.input_tail.parts,
                   reinterpret_cast<float*>(base + plan.input_sums));
    input.launch(params, multiprocessors, stream);
  }

  void make_d_weight(const SummedRows& summed_rows) const {
    const BackwardVariant::Weight& weight = variant.weights[plan.weight];
    WeightParams params{};
    params.rows = problem.d;
    params.set_tokens(1, problem.M);
    params.cu_seqlens = summed_rows.cu_seqlens;
    params.N = summed_rows.N;
    params.accumulate = problem.accumulate;
    const MatrixTensor x = readable(problem.x, problem.M, plan.copies_x, plan.x);
    bool any = false;
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& from = problem.segments[i];
      const bool wanted = from.d_weight.data != nullptr && has_dz(problem, from);
      params.set_columns(i, wanted ? from.columns : 0, weight.columns);
      if (!wanted) continue;
      any = true;
      params.b[i] =
          encode(gemm::plan_operand(as_tokens(dz(i)), problem.dtype,
                                    matrix_extents(problem.M, from.columns), gemm::kBoxRows));
      params.results[i] = gemm::make_target(from.d_weight, problem.dtype, from.d_weight_dtype,
                                            from.columns, problem.d, !problem.accumulate);
    }
    if (any) {
      params.a[0] = encode(gemm::plan_operand(as_tokens(x), problem.dtype,
                                              matrix_extents(problem.M, problem.d),
                                              gemm::box_rows_a(Layout::kTN, problem.d)));
      gemm::cut_tail(params, Layout::kTN, plan.weight_tail.tiles, plan.weight_tail.parts,
                     reinterpret_cast<float*>(base + plan.weight_sums));
      params.beside = {plan.beside, static_cast<int>(plan.weight_beside.early_ctas),
                       static_cast<int>(plan.weight_beside.early_tiles)};
      weight.launch(params, multiprocessors, stream);
    }
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = problem.segments[i];
      if (segment.d_weight.data == nullptr || has_dz(problem, segment)) continue;
      gemm::SumSlicesParams sum;  // of none: 0, or what is there
      sum.rows = segment.columns;
      sum.columns = problem.d;
      sum.result = segment.d_weight;
      sum.fp32 = segment.d_weight_dtype == DType::kFloat32;
      sum.accumulate = problem.accumulate;
      variant.sum_slices(kBackward, sum, stream);
    }
  }

  void make_d_bias(int i) const {
    const ProjectionBackwardSegment& segment = problem.segments[i];
    if (segment.d_bias == nullptr || segment.columns == 0) return;
    float* partial_sums = reinterpret_cast<float*>(base + plan.segments[i].bias_sums);
    const bool summed = has_dz(problem, segment);
    if (summed) {
      ColumnSumParams params;
      params.M = problem.M;
      params.columns = segment.columns;
      params.fp32 =
          segment.out_dtype == DType::kFloat32 && segment.kept == ProjectionKept::kNothing;
      params.matrix = params.fp32 ? segment.d_out : dz(i);
      params.slices = plan.bias_slices;
      params.partial_sums = partial_sums;
      variant.column_sums(params, stream);
    }
    gemm::SumSlicesParams sum;
    sum.partial_sums = partial_sums;
    sum.slices = summed ? plan.bias_slices : 0;
    sum.rows = 1;
    sum.columns = segment.columns;
    sum.result = {segment.d_bias, segment.columns};
    sum.fp32 = segment.d_bias_dtype == DType::kFloat32;
    sum.accumulate = problem.accumulate;
    variant.sum_slices(kBackward, sum, stream);
  }
};

const BackwardVariant& choose(const ProjectionBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_variant(kBackward, backward_variants(), device, options,
                        [&](const BackwardVariant& one) { return reason_against(one, problem); });
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table = [] {
    std::vector<BackwardVariant> rows;
    add_variant<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_variant<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
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
    choose_beside(variant, problem, device, plan);
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

void run_backward(const ProjectionBackwardProblem& problem, const Context& context,
                  const CallOptions& options, const SummedRows& summed,
                  const std::function<void()>& between) {
  const DeviceProperties& device = device_properties(problem.device);
  const BackwardVariant& variant = choose(problem, device, options);
  const BackwardPlan plan = plan_backward(variant, problem, device, options.batch_invariant);
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kBackward, context, plan.workspace_bytes);
  const Call call{
      problem, variant, plan, scratch.at<char>(0), device.multiprocessors, context.stream.handle};
  call.make_dz();
  if (problem.dx.data != nullptr && problem.M > 0 && problem.d > 0) call.make_dx();
  between();
  if (problem.d > 0) call.make_d_weight(summed);
  for (int i = 0; i < problem.segment_count; ++i) call.make_d_bias(i);
  call.make_d_head_norm_weights();
}

}  // namespace tandem::cuda::projection

namespace tandem::cuda {

using namespace projection;

void projection_backward(const ProjectionBackwardProblem& problem, const Context& context,
                         const CallOptions& options) {
  run_backward(problem, context, options);
}

std::size_t projection_backward_workspace_bytes(const ProjectionBackwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options) {
  return plan_backward(choose(problem, device, options), problem, device, options.batch_invariant)
      .workspace_bytes;
}

std::vector<VariantInfo> projection_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ForwardVariant& variant : forward_variants()) {
    infos.push_back({"projection", variant.name, sm90_problem(device)});
  }
  for (const BackwardVariant& variant : backward_variants()) {
    infos.push_back({"projection", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
