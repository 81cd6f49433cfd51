// projection_forward on CUDA: the variant with the shortest predicted time, and its launches. Host
// only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gemm/choose_product.h"
#include "cuda/gemm/few_rows_config.h"
#include "cuda/gemm/matrix.h"
#include "cuda/gemm/predict.h"
#include "cuda/projection/forward_plan.h"
#include "cuda/projection/heads_plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/workspace.h"
#include "ops/projection.h"

namespace tandem::cuda::projection {
namespace {

using gemm::as_tokens, gemm::matrix_extents, gemm::must_copy;

constexpr const char* kForward = "projection_forward";
constexpr int kInvariantColumns = 128;       // of a tile, whatever M is
constexpr int kMostColumnsOfAnyHeads = 128;  // of tiles that finish other heads than regular ones

/// Launches a kernel that knows nothing of heads.
template <void (*launch)(const ForwardParams&, int, void*)>
void launch_without_heads(const HeadsParams& params, int multiprocessors, void* stream) {
  launch(params, multiprocessors, stream);
}

using Takes = ForwardVariant::Takes;

template <class Element>
void add(std::vector<ForwardVariant>& table, DType dtype, const std::string& tile, int columns,
         Takes takes, int most_rows, ForwardVariant::Launch launch) {
  const char* const end = takes == Takes::kPlain   ? ".plain"
                          : takes == Takes::kHeads ? ".heads"
                                                   : "";
  table.push_back({std::string(kForward) + ".sm90." + to_string(dtype) + "." + tile + end, dtype,
                   columns, takes, most_rows, launch, &launch_normalize<Element>,
                   &launch_finish<Element>});
}

/// Tiles of 128 rows.
template <class Element, int kColumns, int kParts,
          void (*kLaunch)(const ForwardParams&, int, void*)>
void add_tiles(std::vector<ForwardVariant>& table, DType dtype, Takes takes,
               const char* ending = "") {
  add<Element>(table, dtype, "n" + std::to_string(kColumns) + (kParts > 1 ? ".split" : "") + ending,
               kColumns, takes, 0, &launch_without_heads<kLaunch>);
  table.back().splits = kParts > 1;
}

template <class Element, int kColumns, bool kPlain, int kParts = 1>
void add_variant(std::vector<ForwardVariant>& table, DType dtype) {
  add_tiles<Element, kColumns, kParts, &launch_forward<Element, kColumns, kPlain, kParts>>(
      table, dtype, kPlain ? Takes::kPlain : Takes::kActivations);
}

template <class Element, int kColumns, int kParts = 1>
void add_two_parts(std::vector<ForwardVariant>& table, DType dtype) {
  add_tiles<Element, kColumns, kParts, &launch_two_parts<Element, kColumns, kParts>>(
      table, dtype, Takes::kActivations, ".two_parts");
}
template <class Element>
void add_all_two_parts(std::vector<ForwardVariant>& table, DType dtype) {
  add_two_parts<Element, 128>(table, dtype);
  add_two_parts<Element, 64>(table, dtype);
  add_two_parts<Element, 64, gemm::kSplitParts>(table, dtype);
  add_two_parts<Element, 192>(table, dtype);
  add_two_parts<Element, 256>(table, dtype);
}

/// Tiles of up to kRows rows: for all rows in one, above kStreamRows for as many as were measured.
template <class Element, int kRows, Takes kTakes, int kColumns>
void add_few_rows(std::vector<ForwardVariant>& table, DType dtype) {
  constexpr int kMostRows = kRows <= gemm::kStreamRows ? kRows : 1024;
  const std::string wide = kColumns > gemm::kFewRowsColumns ? ".n" + std::to_string(kColumns) : "";
  ForwardVariant::Launch launch = nullptr;
  if constexpr (kTakes == Takes::kHeads) {
    launch = &launch_heads_few_rows<Element, kRows>;
  } else {
    launch = &launch_without_heads<&launch_few_rows<Element, kRows, kColumns>>;
  }
  add<Element>(table, dtype, "m" + std::to_string(kRows) + wide, kColumns, kTakes, kMostRows,
               launch);
  table.back().few_rows = kRows;
}
template <class Element, Takes kTakes, int kColumns, int... kRows>
void add_all_few_rows(std::vector<ForwardVariant>& table, DType dtype) {
  (add_few_rows<Element, kRows, kTakes, kColumns>(table, dtype), ...);
}

/// Tiles of other widths than heads have.
template <class Element, int kColumns>
void add_heads_behind(std::vector<ForwardVariant>& table, DType dtype) {
  add<Element>(table, dtype, "n" + std::to_string(kColumns), kColumns, Takes::kHeads, 0,
               &launch_without_heads<&launch_forward<Element, kColumns, true, 1>>);
  table.back().leaves_heads = true;
}

template <class Element, int kColumns>
void add_heads(std::vector<ForwardVariant>& table, DType dtype) {
  add<Element>(table, dtype, "n" + std::to_string(kColumns), kColumns, Takes::kHeads, 0,
               &launch_heads<Element, kColumns>);
}

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype) {
  constexpr int kNarrow = gemm::kFewRowsColumns;
  add_all_few_rows<Element, Takes::kActivations, kNarrow, 8, 16, 32, 64, 96, 128, 160, 224>(table,
                                                                                            dtype);
  add_all_few_rows<Element, Takes::kPlain, 192, 160, 200>(table, dtype);
  add_all_few_rows<Element, Takes::kPlain, gemm::kFewRowsTwoTiles, 208>(table, dtype);
  add_variant<Element, 128, true>(table, dtype);
  add_variant<Element, 64, true>(table, dtype);
  add_variant<Element, 128, false>(table, dtype);
  add_variant<Element, 64, false>(table, dtype);
  add_variant<Element, 64, false, gemm::kSplitParts>(table, dtype);
  add_variant<Element, 96, true>(table, dtype);
  add_variant<Element, 160, true>(table, dtype);
  add_variant<Element, 192, true>(table, dtype);
  add_variant<Element, 256, true>(table, dtype);
  add_all_few_rows<Element, Takes::kHeads, kNarrow, 8, 16, 32, 64, 96, 128, 160, 224>(table, dtype);
  add_heads<Element, 128>(table, dtype);
  add_heads<Element, 256>(table, dtype);
  add_heads_behind<Element, 160>(table, dtype);
  add_heads_behind<Element, 192>(table, dtype);
}

/// Whether a tile can turn heads: neighbours, or halves a power of two of its blocks of 8 columns
/// apart with tables that are read in pairs.
bool rotates_in_tile(const Rope& rope) {
  if (rope.interleaved) return true;
  const std::int64_t pair = 2 * size_of(rope.dtype);
  const auto lies_at_pairs = [&](const MatrixTensor& table) {
    return reinterpret_cast<std::uintptr_t>(table.data) % pair == 0 && table.row_stride % 2 == 0;
  };
  return rope.width >= 16 && (rope.width & (rope.width - 1)) == 0 && lies_at_pairs(rope.cos) &&
         lies_at_pairs(rope.sin);
}

/// Whether heads are as regular_heads.cuh has them: wide tiles finish no others.
bool is_regular(const Rope& rope, const ProjectionForwardSegment& segment) {
  const int width = segment.head_width;
  if (width != 64 && width != 128 && width != 256) return false;
  return !segment.heads.rotates || (!rope.interleaved && rope.width == width);
}

/// Whether a variant's tiles leave a segment's heads to a kernel behind them.
bool leaves_heads(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                  const ProjectionForwardSegment& segment) {
  if (segment.head_width > variant.columns) return true;
  if (!segment.heads.is_there()) return false;
  return variant.leaves_heads || (segment.heads.rotates && !rotates_in_tile(problem.rope)) ||
         (variant.columns > kMostColumnsOfAnyHeads && !is_regular(problem.rope, segment));
}

/// Columns of a segment that a tile of so many computes: whole heads, but for a variant that leaves
/// them.
int columns_per_tile(const ForwardVariant& variant, const ProjectionForwardSegment& segment,
                     int tile) {
  const int head = variant.leaves_heads ? 0 : segment.head_width;
  return head == 0 || head > tile ? tile : tile / head * head;
}

std::int64_t column_tiles(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                          int tile) {
  std::int64_t tiles = 0;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    tiles += ceil_div(segment.columns, columns_per_tile(variant, segment, tile));
  }
  return tiles;
}

/// Columns of a tile at most; where heads must lie whole in it, all that it can have.
int tile_columns(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                 const DeviceProperties& device) {
  const bool whole_heads =
      std::any_of(problem.segments.begin(), problem.segments.end(),
                  [](const ProjectionForwardSegment& segment) { return segment.head_width > 0; });
  if (whole_heads) return variant.columns;
  return gemm::few_rows_columns(
      variant.few_rows, variant.columns, problem.M, problem.d, device.multiprocessors,
      [&](int columns) { return column_tiles(variant, problem, columns); });
}

/// Where a segment's values go.
gemm::Target target(const ProjectionForwardProblem& problem,
                    const ProjectionForwardSegment& segment, const MatrixTensor& matrix,
                    DType stored, const ForwardVariant& variant) {
  const bool whole_panels = columns_per_tile(variant, segment, variant.columns) == variant.columns;
  return gemm::make_target(matrix, problem.dtype, stored, problem.M, segment.columns,
                           whole_panels && variant.few_rows == 0);
}

struct Call {
  const ProjectionForwardProblem& problem;
  const ForwardVariant& variant;
  const ForwardPlan& plan;
  int tile;
  char* base;
  void* stream;

  /// A matrix, or its copy in the workspace.
  MatrixTensor readable(const MatrixTensor& matrix, std::int64_t rows, bool copies,
                        std::size_t offset) const {
    if (!copies) return matrix;
    return gemm::copy_matrix(kForward, matrix, rows, problem.d, base + offset, stream);
  }

  void set_segment(HeadsParams& params, int i) const {
    const ProjectionForwardSegment& from = problem.segments[i];
    const ForwardPlan::Segment& plan_of = plan.segments[i];
    params.set_columns(i, from.columns, columns_per_tile(variant, from, tile));
    if (from.columns == 0) return;
    if (problem.d > 0) {
      const MatrixTensor weight =
          readable(from.weight, from.columns, plan_of.copies_weight, plan_of.weight);
      params.b[i] = encode(gemm::plan_operand(
          as_tokens(weight), problem.dtype, matrix_extents(from.columns, problem.d),
          variant.few_rows > 0 ? params.tile_columns[i]
                               : gemm::box_rows_b(gemm::Layout::kNT, tile)));
      params.b_rows[i] = weight;
    }
    ForwardSegment& to = params.segments[i];
    to.bias = from.bias;
    to.bias_fp32 = from.bias_dtype == DType::kFloat32;
    if (plan_of.wide) {
      to.out.fp32 = true;
      to.out.matrix = {base + plan_of.z, from.columns};
      return;
    }
    to.out = target(problem, from, from.out, from.out_dtype, variant);
    to.slope = from.rest.data != nullptr
                   ? target(problem, from, from.rest, problem.dtype, variant)
                   : target(problem, from, from.slope, from.out_dtype, variant);
    to.activation = {from.activation, static_cast<float>(1.0 / from.divisor),
                     static_cast<float>(from.min), static_cast<float>(from.max)};
    to.head_width = from.head_width;
    for (int end = from.head_width; end > 0 && end <= tile; end += from.head_width) {
      to.head_ends |= 1u << (end / 8 - 1);
    }
    to.inverse_norm = from.inverse_norm;
    if (!from.heads.is_there()) return;
    to.slope = target(problem, from, from.heads.pre_norm, problem.dtype, variant);
    to.inverse_norm = from.heads.rstd;
    HeadSegment& heads = params.heads[i];
    heads = head_segment(from.heads);
    for (int begin = 0; from.heads.rotates && begin + from.head_width <= tile;
         begin += from.head_width) {
      heads.first_halves |= ((1u << problem.rope.width / 16) - 1) << begin / 8;
    }
  }

  /// What tiles have left.
  void finish() const {
    if (plan.workspace_bytes == 0) return;  // they have left nothing there
    FinishParams params;
    params.M = problem.M;
    params.rope = rope_params(problem.rope);
    for (int i = 0; i < problem.segment_count; ++i) {
      const ProjectionForwardSegment& from = problem.segments[i];
      if (!plan.segments[i].wide) continue;
      const auto* z = reinterpret_cast<const float*>(base + plan.segments[i].z);
      const bool out_fp32 = from.out_dtype == DType::kFloat32;
      if (from.heads.is_there()) {
        params.segments[params.count++] = {
            from.columns,        from.head_width, z, head_segment(from.heads), from.out, out_fp32,
            from.heads.pre_norm, from.heads.rstd};
      } else {
        variant.normalize(
            {problem.M, from.columns, from.head_width, z, from.out, out_fp32, from.inverse_norm},
            stream);
      }
    }
    if (params.count > 0) variant.finish(params, stream);
  }
};

/// Whether no segment has an activation.
bool is_plain(const ProjectionForwardProblem& problem) {
  return std::all_of(problem.segments.begin(), problem.segments.end(),
                     [](const ProjectionForwardSegment& segment) {
                       return segment.activation == Activation::kNone;
                     });
}
bool has_heads(const ProjectionForwardProblem& problem) {
  return std::any_of(
      problem.segments.begin(), problem.segments.end(),
      [](const ProjectionForwardSegment& segment) { return segment.heads.is_there(); });
}

/// What CTAs of few rows do behind their products: each finishes so many rows, a wave after
/// another.
struct FewRowsEnds {
  double waves, rows;

  FewRowsEnds(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
              std::int64_t per_row, int multiprocessors) {
    const gemm::FewRowsShape shape =
        gemm::few_rows_shape(variant.few_rows, problem.M, per_row, problem.d, multiprocessors);
    waves = static_cast<double>(
        ceil_div(shape.row_tiles * per_row * shape.parts, std::max(multiprocessors, 1)));
    rows = static_cast<double>(shape.rows) / shape.parts;
  }
};

/// Predicted microseconds that activations take beside products. Most of it is code that a tile's
/// warps fetch and run once.
double predict_activations(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                           std::int64_t per_row, int multiprocessors) {
  constexpr double kRow = 0.049, kSplit = 1.6, kNarrow = 2.8, kWide = 4.7;
  if (is_plain(problem)) return 0.0;
  if (variant.few_rows > 0) {
    const FewRowsEnds ends(variant, problem, per_row, multiprocessors);
    return ends.waves * ends.rows * kRow;
  }
  return variant.splits ? kSplit : variant.columns == 64 ? kNarrow : kWide;
}

/// Predicted microseconds that heads take beside their products.
double predict_heads(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                     std::int64_t per_row, int multiprocessors) {
  std::int64_t left = 0;  // columns
  bool normalizes = false;
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    normalizes = normalizes || segment.heads.normalizes();
    if (leaves_heads(variant, problem, segment)) left += segment.columns;
  }
  // Of another launch, and of z's way through memory.
  constexpr double kLaunch = 3.0, kBytesPerMicrosecond = 2.6e6;
  const double behind =
      left == 0 ? 0.0 : kLaunch + static_cast<double>(8 * problem.M * left) / kBytesPerMicrosecond;
  if (variant.takes != Takes::kHeads || variant.leaves_heads) return behind;
  if (variant.few_rows > 0) {  // of each row of a CTA beyond the first
    constexpr double kNormedRow = 0.15, kTurnedRow = 0.13, kFirstRows = 40.0;
    const FewRowsEnds ends(variant, problem, per_row, multiprocessors);
    return behind + ends.waves * std::max(ends.rows - kFirstRows, 0.0) *
                        (normalizes ? kNormedRow : kTurnedRow);
  }
  // Of the last tile; of wide ones no norm lies beside products.
  constexpr double kTurned = 2.0, kTurnedWide = 0.5, kNormed = 1.7, kNormOfWide = 2.3;
  const bool wide = variant.columns > kMostColumnsOfAnyHeads;
  const double end = behind + (wide ? kTurnedWide : kTurned) + (normalizes ? kNormed : 0.0);
  if (!normalizes || !wide) return end;
  const std::int64_t tiles = ceil_div(problem.M, gemm::kTileRows) * per_row;
  return end + kNormOfWide * static_cast<double>(ceil_div(tiles, multiprocessors));
}

const ForwardVariant& choose(const ProjectionForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options) {
  const bool in_two_parts = problem.segments[0].rest.data != nullptr;
  return gemm::choose_product(kForward, in_two_parts ? two_part_variants() : forward_variants(),
                              problem, device, options, [](const ForwardVariant& one) {
                                return one.columns == kInvariantColumns && one.few_rows == 0 &&
                                       one.takes != Takes::kPlain;
                              });
}

/// `behind`: see run_forward_behind.
void run_forward(const ProjectionForwardProblem& problem, const Context& context,
                 const CallOptions& options, bool behind) {
  const DeviceProperties& device = device_properties(problem.device);
  const ForwardVariant& variant = choose(problem, device, options);
  const ForwardPlan plan = plan_forward(variant, problem);
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kForward, context, plan.workspace_bytes);
  if (problem.M == 0) return;
  const Call call{problem,
                  variant,
                  plan,
                  tile_columns(variant, problem, device),
                  scratch.at<char>(0),
                  context.stream.handle};
  HeadsParams params{};
  params.rope = rope_params(problem.rope);
  params.B = 1;
  params.rows = static_cast<int>(problem.M);
  params.depth[0] = problem.d;
  const MatrixTensor x = call.readable(problem.x, problem.M, plan.copies_x, plan.x);
  if (problem.d > 0) {
    const int rows = gemm::box_rows_a(gemm::Layout::kNT, problem.M, variant.few_rows);
    params.a[0] = encode(gemm::plan_operand(as_tokens(x), problem.dtype,
                                            matrix_extents(problem.M, problem.d), rows));
  }
  for (int i = 0; i < problem.segment_count; ++i) call.set_segment(params, i);
  params.b_is_there = behind && !plan.copies();  // else these come in between
  variant.launch(params, device.multiprocessors, context.stream.handle);
  call.finish();
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table = [] {
    std::vector<ForwardVariant> rows;
    add_variants<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_variants<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
}

const std::vector<ForwardVariant>& two_part_variants() {
  static const auto table = [] {
    std::vector<ForwardVariant> rows;
    add_all_two_parts<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_all_two_parts<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
}

std::string reason_against(const ForwardVariant& variant, const ProjectionForwardProblem& problem) {
  const std::string reason = gemm::reason_against_rows(variant, problem.dtype, problem.M);
  if (!reason.empty()) return reason;
  if ((variant.takes == Takes::kPlain || variant.leaves_heads) && !is_plain(problem)) {
    return "takes segments without activation";
  }
  if (has_heads(problem) != (variant.takes == Takes::kHeads)) {
    return variant.takes == Takes::kHeads ? "takes segments with head norms or rotations"
                                          : "takes segments without head norms and rotations";
  }
  const std::int64_t columns =
      std::max<std::int64_t>(column_tiles(variant, problem, variant.columns), 1);
  return gemm::reason_against_tiles(problem.M, columns);
}

ForwardPlan plan_forward(const ForwardVariant& variant, const ProjectionForwardProblem& problem) {
  ForwardPlan plan;
  if (problem.M == 0) return plan;
  WorkspaceLayout workspace;
  plan.copies_x = must_copy(problem.x, problem.dtype, problem.M, problem.d);
  plan.x = workspace.add(plan.copies_x ? problem.M * gemm::padded(problem.d) * 2 : 0);
  for (int i = 0; i < problem.segment_count; ++i) {
    const ProjectionForwardSegment& segment = problem.segments[i];
    if (segment.columns == 0) continue;
    ForwardPlan::Segment& to = plan.segments[i];
    to.copies_weight = must_copy(segment.weight, problem.dtype, segment.columns, problem.d);
    to.weight = workspace.add(to.copies_weight ? segment.columns * gemm::padded(problem.d) * 2 : 0);
    to.wide = leaves_heads(variant, problem, segment);
    to.z = workspace.add(to.wide ? problem.M * segment.columns * 4 : 0);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

void run_forward_behind(const ProjectionForwardProblem& problem, const Context& context,
                        const CallOptions& options) {
  run_forward(problem, context, options, true);
}

double predict_forward(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                       const DeviceProperties& device) {
  const std::int64_t row_tiles = ceil_div(problem.M, gemm::kTileRows);
  const std::int64_t per_row = column_tiles(variant, problem, variant.columns);
  const std::int64_t steps = ceil_div(problem.d, gemm::kTileDepth);
  const double beside = predict_heads(variant, problem, per_row, device.multiprocessors) +
                        predict_activations(variant, problem, per_row, device.multiprocessors);
  if (variant.few_rows > 0) {
    return beside + gemm::predict_few_rows(variant.few_rows, variant.columns, problem.M, per_row,
                                           problem.d, device.multiprocessors);
  }
  const double ends = beside + gemm::ends_of_tiles(variant.columns, variant.splits, problem.M);
  if (variant.splits) {
    return ends + gemm::predict_split(row_tiles, per_row, steps, variant.columns, device);
  }
  return ends +
         gemm::predict_tiles(row_tiles, per_row, steps, variant.columns, device.multiprocessors);
}

}  // namespace tandem::cuda::projection

namespace tandem::cuda {

using namespace projection;

void projection_forward(const ProjectionForwardProblem& problem, const Context& context,
                        const CallOptions& options) {
  run_forward(problem, context, options, false);
}

std::size_t projection_forward_workspace_bytes(const ProjectionForwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options) {
  return plan_forward(choose(problem, device, options), problem).workspace_bytes;
}

}  // namespace tandem::cuda
