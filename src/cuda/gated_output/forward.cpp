// gated_output_forward on CUDA, by the quickest predicted: the gate's pass, the product, the norm's
// pass; or whole rows in one kernel. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits>

#include "cuda/gated_output/forward_plan.h"
#include "cuda/gemm/choose_product.h"
#include "cuda/gemm/few_rows_config.h"
#include "cuda/gemm/matrix.h"
#include "cuda/gemm/predict.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/clear.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_output.h"

namespace tandem::cuda::gated_output {
namespace {

using gemm::as_tokens, gemm::matrix_extents, gemm::must_copy;

constexpr const char* kForward = "gated_output_forward";
constexpr int kInvariantColumns = 128;  // of a tile, whatever M is
constexpr int kMostFewRows = 400;       // to which tiles of gemm/few_rows.cuh were measured

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype) {
  const auto add = [&](const char* kind, int columns, int few_rows, ForwardVariant::Launch launch,
                       ForwardVariant::LaunchWholeRows whole_rows = nullptr, bool gates = false) {
    table.push_back({std::string(kForward) + ".sm90." + to_string(dtype) + "." + kind, dtype,
                     columns, few_rows <= gemm::kStreamRows ? few_rows : kMostFewRows, few_rows,
                     launch, whole_rows, gates, &launch_gate<Element>,
                     &row_norm::launch_normalize<Element>});
  };
  add("m8", gemm::kFewRowsColumns, 8, &launch_few_rows<Element, 8>);
  add("m16", gemm::kFewRowsColumns, 16, &launch_few_rows<Element, 16>);
  add("m32", gemm::kFewRowsColumns, 32, &launch_few_rows<Element, 32>);
  add("m64", gemm::kFewRowsColumns, 64, &launch_few_rows<Element, 64>);
  add("m96", gemm::kFewRowsColumns, 96, &launch_few_rows<Element, 96>);
  add("m128", gemm::kFewRowsColumns, 128, &launch_few_rows<Element, 128>);
  add("m160", gemm::kFewRowsColumns, 160, &launch_few_rows<Element, 160>);
  add("n128", 128, 0, &launch_forward<Element, 128, 1>);
  add("n64", 64, 0, &launch_forward<Element, 64, 1>);
  add("n64.split", 64, 0, &launch_forward<Element, 64, gemm::kSplitParts>);
  table.back().splits = true;
  add("n160", 160, 0, &launch_forward<Element, 160, 1>);
  add("n256", 256, 0, &launch_forward<Element, 256, 1>);
  add("rows", kWholeRowsColumns, 0, nullptr, &launch_whole_rows<Element, false>);
  add("rows_gated", kWholeRowsColumns, 0, nullptr, &launch_whole_rows<Element, true>, true);
}

/// Whether a pass makes a before the product.
bool gates_before(const ForwardVariant& variant, const GatedOutputForwardProblem& problem) {
  return !problem.rows.is_o() && !variant.gates;
}

/// Tiles of a row.
std::int64_t tiles_of_row(const ForwardVariant& variant, const GatedOutputForwardProblem& problem) {
  return ceil_div(problem.d, variant.columns);
}
/// Counts of how many tiles have arrived: of each 64 rows of whole tiles.
std::int64_t arrivals(const GatedOutputForwardProblem& problem) {
  return ceil_div(problem.M, gemm::kTileRows) * (gemm::kTileRows / 64);
}

const ForwardVariant& choose(const GatedOutputForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options) {
  return gemm::choose_product(kForward, forward_variants(), problem, device, options,
                              [](const ForwardVariant& one) {
                                return one.columns == kInvariantColumns && one.few_rows == 0;
                              });
}

struct Call {
  const GatedOutputForwardProblem& problem;
  const ForwardVariant& variant;
  const ForwardPlan& plan;
  const DeviceProperties& device;
  char* base;
  void* stream;

  /// Copies a matrix into the workspace, where TMA can read it.
  MatrixTensor copy(const MatrixTensor& matrix, std::int64_t rows, int columns,
                    std::size_t offset) const {
    return gemm::copy_matrix(kForward, matrix, rows, columns, base + offset, stream);
  }
  CUtensorMap operand(const MatrixTensor& matrix, std::int64_t rows, int columns,
                      int box_rows) const {
    return encode(gemm::plan_operand(as_tokens(matrix), problem.dtype,
                                     matrix_extents(rows, columns), box_rows));
  }

  CUtensorMap operand_a(const MatrixTensor& matrix, int box_rows) const {
    return operand(matrix, problem.M, problem.d_in, box_rows);
  }
  gemm::Target result(const MatrixTensor& matrix) const {
    return gemm::make_target(matrix, problem.dtype, problem.dtype, problem.M, problem.d,
                             variant.few_rows == 0);
  }

  /// Returns a as TMA can read it.
  MatrixTensor make_a() const {
    MatrixTensor a = problem.rows.o;
    if (plan.gates) {
      a = problem.gated;
      if (a.data == nullptr) a = {base + plan.a, gemm::padded(problem.d_in)};
      GateParams params;
      params.M = problem.M;
      params.d = problem.d_in;
      params.rows = problem.rows;
      params.group_eps = static_cast<float>(problem.group_eps);
      params.gated = a;
      params.group_rstd = problem.group_rstd;
      variant.gate(kForward, params, stream);
    }
    return plan.copies_a ? copy(a, problem.M, problem.d_in, plan.a) : a;
  }

  /// What the product takes that is written to `sum`, where it is wanted.
  void fill(ForwardParams& params, const MatrixTensor& a, const MatrixTensor& sum) const {
    const bool few = variant.few_rows > 0;
    params.B = 1;
    params.rows = static_cast<int>(problem.M);
    params.depth[0] = problem.d_in;
    const int tile = gemm::few_rows_columns(
        variant.few_rows, variant.columns, problem.M, problem.d_in, device.multiprocessors,
        [&](int columns) { return ceil_div(problem.d, columns); });
    params.set_columns(0, problem.d, tile);
    if (problem.d_in > 0) {
      const MatrixTensor weight = plan.copies_weight
                                      ? copy(problem.weight, problem.d, problem.d_in, plan.weight)
                                      : problem.weight;
      params.a[0] = operand_a(a, gemm::box_rows_a(gemm::Layout::kNT, problem.M, variant.few_rows));
      params.b[0] = operand(weight, problem.d, problem.d_in,
                            few ? tile : gemm::box_rows_b(gemm::Layout::kNT, tile));
      params.b_rows[0] = weight;
    }
    params.residual = problem.residual;
    params.addend.is_there = !few && problem.residual.data != nullptr;
    if (params.addend.is_there) {
      const MatrixTensor residual =
          plan.copies_residual ? copy(problem.residual, problem.M, problem.d, plan.residual)
                               : problem.residual;
      params.addend.map = operand(residual, problem.M, problem.d, 64);
    }
    params.bias = problem.bias;
    params.sum = result(sum);
  }

  void make_sum(const MatrixTensor& a, const MatrixTensor& sum, int multiprocessors) const {
    ForwardParams params{};
    fill(params, a, sum);
    variant.launch(params, multiprocessors, stream);
  }

  void make_whole_rows(const MatrixTensor& a, int multiprocessors) const {
    if (multiprocessors < tiles_of_row(variant, problem)) {
      throw Unsupported("[" + std::string(kForward) + "] " + variant.name + " takes " +
                        std::to_string(tiles_of_row(variant, problem)) + " multiprocessors, got " +
                        std::to_string(multiprocessors));
    }
    WholeRowsParams params{};
    fill(params, a, problem.sum);
    if (variant.gates && problem.d_in > 0) {
      params.gate = operand_a(problem.rows.gate, gemm::box_rows_a(gemm::Layout::kNT, problem.M));
    }
    params.centers = problem.norm == OutputNorm::kLayerNorm;
    params.norm_weight = problem.norm_weight;
    params.norm_bias = problem.norm_bias;
    params.eps = static_cast<float>(problem.eps);
    params.out = result(problem.out);
    params.mean = problem.mean;
    params.rstd = problem.rstd;
    params.parts = reinterpret_cast<float2*>(base + plan.parts);
    params.arrived = reinterpret_cast<std::uint32_t*>(base + plan.arrived);
    launch_clear(kForward, params.arrived, arrivals(problem), stream);
    variant.whole_rows(params, multiprocessors, stream);
  }

  void normalize(const MatrixTensor& sum) const {
    row_norm::NormalizeParams params;
    params.M = problem.M;
    params.d = problem.d;
    params.x = sum;
    params.centers = problem.norm == OutputNorm::kLayerNorm;
    params.weight = problem.norm_weight;
    params.bias = problem.norm_bias;
    params.eps = problem.eps;
    params.n = problem.out;
    params.kept_mean = problem.mean;
    params.kept_rstd = problem.rstd;
    variant.normalize(kForward, params, stream);
  }
};

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

std::string reason_against(const ForwardVariant& variant,
                           const GatedOutputForwardProblem& problem) {
  const std::string reason = gemm::reason_against_rows(variant, problem.dtype, problem.M);
  if (!reason.empty()) return reason;
  if (variant.whole_rows != nullptr) {
    if (problem.norm == OutputNorm::kNone) return "takes rows that end in a norm";
    if (tiles_of_row(variant, problem) > kMostTilesOfRow) {
      return "takes up to " + std::to_string(kMostTilesOfRow * kWholeRowsColumns) +
             " columns, got d " + std::to_string(problem.d);
    }
  }
  if (variant.gates) {
    const GatedRows& rows = problem.rows;
    if (rows.gate.data == nullptr || rows.gate_activation != OutputGate::kNone ||
        rows.group_width > 0) {
      return "takes a gate without activation and without a group norm";
    }
    if (problem.gated.data != nullptr) return "does not keep gated";
    if (must_copy(rows.o, problem.dtype, problem.M, problem.d_in) ||
        must_copy(rows.gate, problem.dtype, problem.M, problem.d_in)) {
      return "takes o and gate at strides that are multiples of 16 bytes";
    }
  }
  return gemm::reason_against_tiles(problem.M, tiles_of_row(variant, problem));
}

ForwardPlan plan_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem) {
  ForwardPlan plan;
  WorkspaceLayout workspace;
  const auto add = [&](bool wanted, std::int64_t rows, int columns) {
    return workspace.add(wanted ? rows * gemm::padded(columns) * 2 : 0);
  };
  const auto copies = [&](const MatrixTensor& matrix, std::int64_t rows, int columns) {
    return must_copy(matrix, problem.dtype, rows, columns);
  };
  plan.gates = gates_before(variant, problem);
  const MatrixTensor& a = plan.gates ? problem.gated : problem.rows.o;
  plan.copies_a = a.data != nullptr && copies(a, problem.M, problem.d_in);
  plan.copies_weight = copies(problem.weight, problem.d, problem.d_in);
  plan.copies_residual = variant.few_rows == 0 && problem.residual.data != nullptr &&
                         copies(problem.residual, problem.M, problem.d);
  plan.a = add(plan.copies_a || a.data == nullptr, problem.M, problem.d_in);
  plan.weight = add(plan.copies_weight, problem.d, problem.d_in);
  plan.residual = add(plan.copies_residual, problem.M, problem.d);
  if (variant.whole_rows != nullptr) {
    plan.parts = workspace.add(problem.M * tiles_of_row(variant, problem) *
                               static_cast<std::int64_t>(sizeof(float2)));
    plan.arrived = workspace.add(arrivals(problem) * 4);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

double predict_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem,
                       const DeviceProperties& device) {
  // Of a pass over rows beside its bytes, of the counts that whole rows clear and of the waits for
  // them, and of each of their tiles, whose norm lies beside no products; these take longer behind
  // a gate's pass. Of each row of the residual that a CTA of few rows reads.
  constexpr double kPass = 2.0, kClear = 5.2, kNorm = 3.3, kNormBehindPass = 6.0;
  constexpr double kResidualOfRow = 0.03;
  const auto pass = [&](std::int64_t columns, int matrices) {
    constexpr double kBytesPerMicrosecond = 4.2e6;
    return kPass + static_cast<double>(problem.M * columns * matrices * 2) / kBytesPerMicrosecond;
  };
  const std::int64_t per_row = tiles_of_row(variant, problem);
  const std::int64_t row_tiles = ceil_div(problem.M, gemm::kTileRows);
  const bool whole_rows = variant.whole_rows != nullptr;
  std::int64_t ctas = device.multiprocessors;
  if (whole_rows) ctas -= ctas % std::max<std::int64_t>(per_row, 1);
  if (ctas == 0) return std::numeric_limits<double>::infinity();
  const std::int64_t steps = ceil_div(problem.d_in, gemm::kTileDepth);
  double time = 0.0;
  if (variant.few_rows > 0) {
    const gemm::FewRowsShape shape = gemm::few_rows_shape(variant.few_rows, problem.M, per_row,
                                                          problem.d_in, device.multiprocessors);
    time = gemm::predict_few_rows(variant.few_rows, variant.columns, problem.M, per_row,
                                  problem.d_in, device.multiprocessors);
    if (problem.residual.data != nullptr) time += kResidualOfRow * shape.rows / shape.parts;
  } else {
    time = gemm::ends_of_tiles(variant.columns, variant.splits, problem.M) +
           (variant.splits ? gemm::predict_split(row_tiles, per_row, steps, variant.columns, device)
                           : gemm::predict_tiles(row_tiles, per_row, steps, variant.columns,
                                                 static_cast<int>(ctas)));
  }
  const bool gates = gates_before(variant, problem);
  if (gates) time += pass(problem.d_in, 3);
  if (whole_rows) {
    const double norm = gates ? kNormBehindPass : kNorm;
    time += kClear + norm * static_cast<double>(ceil_div(row_tiles * per_row, ctas));
  } else if (problem.norm != OutputNorm::kNone) {
    time += pass(problem.d, 2);
  }
  return time;
}

}  // namespace tandem::cuda::gated_output

namespace tandem::cuda {

using namespace gated_output;

void gated_output_forward(const GatedOutputForwardProblem& problem, const Context& context,
                          const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const ForwardVariant& variant = choose(problem, device, options);
  const ForwardPlan plan = plan_forward(variant, problem);
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kForward, context, plan.workspace_bytes);
  if (problem.M == 0) return;
  const Call call{problem, variant, plan, device, scratch.at<char>(0), context.stream.handle};
  const MatrixTensor a = call.make_a();
  if (variant.whole_rows != nullptr) return call.make_whole_rows(a, device.multiprocessors);
  // The norm may write where the sum lies.
  const MatrixTensor sum = problem.sum.data != nullptr ? problem.sum : problem.out;
  call.make_sum(a, sum, device.multiprocessors);
  if (problem.norm != OutputNorm::kNone) call.normalize(sum);
}

std::size_t gated_output_forward_workspace_bytes(const GatedOutputForwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options) {
  return plan_forward(choose(problem, device, options), problem).workspace_bytes;
}

}  // namespace tandem::cuda
