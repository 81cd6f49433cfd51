// projection_backward on CUDA: dz where d_out is not it already, then dx and d_weight by one matrix
// product each over all segments, and d_bias. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gemm/matrix.h"
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
                    {64, true, &launch_input<Element, 64, gemm::kSplitParts>}},
                   {{128, false, &launch_weight<Element, 128, 1>},
                    {192, false, &launch_weight<Element, 192, 1>},
                    {256, false, &launch_weight<Element, 256, 1>},
                    {128, true, &launch_weight<Element, 128, gemm::kSplitParts>}},
                   &launch_column_sums<Element>,
                   &gemm::launch_sum_slices<Element>});
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
