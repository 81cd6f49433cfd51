// gemm_swiglu_forward on CUDA: the norm, where there is one, and the variant with the shortest
// predicted time. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gemm/choose_product.h"
#include "cuda/gemm/few_rows_config.h"
#include "cuda/gemm/matrix.h"
#include "cuda/gemm/predict.h"
#include "cuda/gemm_swiglu/forward_plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/workspace.h"
#include "ops/gemm_swiglu.h"

namespace tandem::cuda::gemm_swiglu {
namespace {

using gemm::as_tokens, gemm::matrix_extents, gemm::must_copy;

constexpr const char* kForward = "gemm_swiglu_forward";
constexpr int kInvariantColumns = 128;  // of a tile, whatever M is
constexpr int kMostFewRows = 400;       // to which tiles of gemm/few_rows.cuh were measured

template <class Element>
void add(std::vector<ForwardVariant>& table, DType dtype, const std::string& tile, int columns,
         int few_rows, ForwardVariant::Launch launch) {
  table.push_back({std::string(kForward) + ".sm90." + to_string(dtype) + "." + tile, dtype, columns,
                   few_rows <= gemm::kStreamRows ? few_rows : kMostFewRows, few_rows, launch,
                   &row_norm::launch_normalize<Element>});
}

template <class Element, int kColumns, int... kRows>
void add_few_rows(std::vector<ForwardVariant>& table, DType dtype) {
  const std::string wide = kColumns > gemm::kFewRowsColumns ? ".n" + std::to_string(kColumns) : "";
  (add<Element>(table, dtype, "m" + std::to_string(kRows) + wide, kColumns, kRows,
                &launch_few_rows<Element, kRows, kColumns>),
   ...);
}

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype) {
  add_few_rows<Element, gemm::kFewRowsColumns, 8, 16, 32, 64, 96, 128, 160>(table, dtype);
  add_few_rows<Element, 192, 160, 200>(table, dtype);
  add_few_rows<Element, gemm::kFewRowsTwoTiles, 208>(table, dtype);
  add<Element>(table, dtype, "n128", 128, 0, &launch_forward<Element, 128>);
  add<Element>(table, dtype, "n256", 256, 0, &launch_forward<Element, 256>);
}

const ForwardVariant& choose(const GemmSwigluForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options) {
  return gemm::choose_product(kForward, forward_variants(), problem, device, options,
                              [](const ForwardVariant& one) {
                                return one.columns == kInvariantColumns && one.few_rows == 0;
                              });
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

std::string reason_against(const ForwardVariant& variant, const GemmSwigluForwardProblem& problem) {
  const std::string reason = gemm::reason_against_rows(variant, problem.dtype, problem.M);
  if (!reason.empty()) return reason;
  return gemm::reason_against_tiles(problem.M, ceil_div(problem.F, variant.columns / 2));
}

ForwardPlan plan_forward(const GemmSwigluForwardProblem& problem) {
  ForwardPlan plan;
  if (problem.M == 0 || problem.F == 0) return plan;
  WorkspaceLayout workspace;
  const auto add = [&](bool wanted, std::int64_t rows) {
    return workspace.add(wanted ? rows * gemm::padded(problem.d) * 2 : 0);
  };
  const auto copies = [&](const MatrixTensor& matrix, std::int64_t rows) {
    return must_copy(matrix, problem.dtype, rows, problem.d);
  };
  plan.copies_x = problem.norm.weight == nullptr && copies(problem.x, problem.M);
  plan.copies_gate_weight = copies(problem.gate_weight, problem.F);
  plan.copies_up_weight = copies(problem.up_weight, problem.F);
  plan.x = add(plan.copies_x || problem.norm.weight != nullptr, problem.M);
  plan.gate_weight = add(plan.copies_gate_weight, problem.F);
  plan.up_weight = add(plan.copies_up_weight, problem.F);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

double predict_forward(const ForwardVariant& variant, const GemmSwigluForwardProblem& problem,
                       const DeviceProperties& device) {
  const std::int64_t per_row = ceil_div(problem.F, variant.columns / 2);
  if (variant.few_rows > 0) {
    return gemm::predict_few_rows(variant.few_rows, variant.columns, problem.M, per_row, problem.d,
                                  device.multiprocessors);
  }
  return gemm::ends_of_tiles(variant.columns, false, problem.M) +
         gemm::predict_tiles(ceil_div(problem.M, gemm::kTileRows), per_row,
                             ceil_div(problem.d, gemm::kTileDepth), variant.columns,
                             device.multiprocessors);
}

}  // namespace tandem::cuda::gemm_swiglu

namespace tandem::cuda {

using namespace gemm_swiglu;

void gemm_swiglu_forward(const GemmSwigluForwardProblem& problem, const Context& context,
                         const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const ForwardVariant& variant = choose(problem, device, options);
  const ForwardPlan plan = plan_forward(problem);
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kForward, context, plan.workspace_bytes);
  if (problem.M == 0) return;
  void* const stream = context.stream.handle;
  const auto readable = [&](const MatrixTensor& matrix, std::int64_t rows, bool copies,
                            std::size_t offset) {
    if (!copies) return matrix;
    return gemm::copy_matrix(kForward, matrix, rows, problem.d, scratch.at<char>(offset), stream);
  };
  const auto operand = [&](const MatrixTensor& matrix, std::int64_t rows, int box_rows) {
    return encode(gemm::plan_operand(as_tokens(matrix), problem.dtype,
                                     matrix_extents(rows, problem.d), box_rows));
  };
  MatrixTensor x = readable(problem.x, problem.M, plan.copies_x, plan.x);
  if (problem.norm.weight != nullptr) {
    x = {};
    if (problem.F > 0) x = {scratch.at<char>(plan.x), gemm::padded(problem.d)};
    variant.normalize(kForward,
                      {row_norm::rows_of(problem.M, problem.d, problem.x, problem.norm), x, nullptr,
                       problem.kept_rstd},
                      stream);
  }
  if (problem.F == 0) return;
  const bool few = variant.few_rows > 0;
  ForwardParams params{};
  params.B = 1;
  params.rows = static_cast<int>(problem.M);
  params.depth[0] = problem.d;
  const int tile = gemm::few_rows_columns(
      variant.few_rows, variant.columns, problem.M, problem.d, device.multiprocessors,
      [&](int columns) { return ceil_div(problem.F, columns / 2); });
  params.set_columns(0, problem.F, tile / 2);
  params.a[0] =
      operand(x, problem.M, gemm::box_rows_a(gemm::Layout::kNT, problem.M, variant.few_rows));
  const int rows_b = few ? tile / 2 : gemm::kBoxRows;
  const MatrixTensor weights[] = {
      readable(problem.gate_weight, problem.F, plan.copies_gate_weight, plan.gate_weight),
      readable(problem.up_weight, problem.F, plan.copies_up_weight, plan.up_weight)};
  for (int i = 0; i < 2; ++i) {
    params.b[i] = operand(weights[i], problem.F, rows_b);
    params.b_rows[i] = weights[i];
  }
  // The norm's kernel follows the stream and writes no weight; a copy would come in between.
  params.b_is_there =
      problem.norm.weight != nullptr && !plan.copies_gate_weight && !plan.copies_up_weight;
  params.activation = problem.activation;
  const auto target = [&](const MatrixTensor& matrix) {
    return gemm::make_target(matrix, problem.dtype, problem.dtype, problem.M, problem.F, !few);
  };
  params.out = target(problem.out);
  params.gate_slope = target(problem.gate_slope);
  params.up_slope = target(problem.up_slope);
  variant.launch(params, device.multiprocessors, stream);
}

std::size_t gemm_swiglu_forward_workspace_bytes(const GemmSwigluForwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options) {
  choose(problem, device, options);
  return plan_forward(problem).workspace_bytes;
}

}  // namespace tandem::cuda
