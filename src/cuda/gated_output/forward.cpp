// gated_output_forward on CUDA: the gate's pass, the product with the shortest predicted time, the
// norm's pass. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gated_output/forward_plan.h"
#include "cuda/gemm/choose_product.h"
#include "cuda/gemm/few_rows_config.h"
#include "cuda/gemm/matrix.h"
#include "cuda/gemm/predict.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_output.h"

namespace tandem::cuda::gated_output {
namespace {

using gemm::as_tokens, gemm::matrix_extents, gemm::must_copy;

constexpr const char* kForward = "gated_output_forward";
constexpr int kInvariantColumns = 128;  // of a tile, whatever M is

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype) {
  const auto add = [&](const char* kind, int columns, int most_rows,
                       ForwardVariant::Launch launch) {
    table.push_back({std::string(kForward) + ".sm90." + to_string(dtype) + "." + kind, dtype,
                     columns, most_rows, launch, &launch_gate<Element>,
                     &row_norm::launch_normalize<Element>, &gemm::launch_copy<Element>});
  };
  add("m8", gemm::kFewRowsColumns, 8, &launch_few_rows<Element, 8>);
  add("m16", gemm::kFewRowsColumns, 16, &launch_few_rows<Element, 16>);
  add("m32", gemm::kFewRowsColumns, 32, &launch_few_rows<Element, 32>);
  add("m64", gemm::kFewRowsColumns, 64, &launch_few_rows<Element, 64>);
  add("n128", 128, 0, &launch_forward<Element, 128>);
  add("n256", 256, 0, &launch_forward<Element, 256>);
}

const ForwardVariant& choose(const GatedOutputForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options) {
  return gemm::choose_product(kForward, forward_variants(), problem, device, options,
                              [](const ForwardVariant& one) {
                                return one.columns == kInvariantColumns && one.most_rows == 0;
                              });
}

struct Call {
  const GatedOutputForwardProblem& problem;
  const ForwardVariant& variant;
  const ForwardPlan& plan;
  char* base;
  void* stream;

  /// Copies a matrix into the workspace, where TMA can read it.
  MatrixTensor copy(const MatrixTensor& matrix, std::int64_t rows, int columns,
                    std::size_t offset) const {
    return gemm::copy_matrix(kForward, variant.copy, matrix, rows, columns, base + offset, stream);
  }
  CUtensorMap operand(const MatrixTensor& matrix, std::int64_t rows, int columns,
                      int box_rows) const {
    return encode(gemm::plan_operand(as_tokens(matrix), problem.dtype,
                                     matrix_extents(rows, columns), box_rows));
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

  void make_sum(const MatrixTensor& a, const MatrixTensor& sum, int multiprocessors) const {
    const bool few = variant.most_rows > 0;
    ForwardParams params{};
    params.B = 1;
    params.rows = static_cast<int>(problem.M);
    params.depth[0] = problem.d_in;
    params.set_columns(0, problem.d, variant.columns);
    if (problem.d_in > 0) {
      const MatrixTensor weight = plan.copies_weight
                                      ? copy(problem.weight, problem.d, problem.d_in, plan.weight)
                                      : problem.weight;
      params.a[0] = operand(a, problem.M, problem.d_in,
                            few ? variant.most_rows : gemm::box_rows_a(gemm::Layout::kNT));
      params.b[0] = operand(weight, problem.d, problem.d_in,
                            gemm::box_rows_b(gemm::Layout::kNT, variant.columns));
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
    params.sum = gemm::make_target(sum, problem.dtype, problem.dtype, problem.M, problem.d, !few);
    variant.launch(params, multiprocessors, stream);
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
  return gemm::reason_against_tiles(problem.M, ceil_div(problem.d, variant.columns));
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
  plan.gates = !problem.rows.is_o();
  const MatrixTensor& a = plan.gates ? problem.gated : problem.rows.o;
  plan.copies_a = a.data != nullptr && copies(a, problem.M, problem.d_in);
  plan.copies_weight = copies(problem.weight, problem.d, problem.d_in);
  plan.copies_residual = variant.most_rows == 0 && problem.residual.data != nullptr &&
                         copies(problem.residual, problem.M, problem.d);
  plan.a = add(plan.copies_a || a.data == nullptr, problem.M, problem.d_in);
  plan.weight = add(plan.copies_weight, problem.d, problem.d_in);
  plan.residual = add(plan.copies_residual, problem.M, problem.d);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

double predict_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem,
                       const DeviceProperties& device) {
  const std::int64_t tiles =
      ceil_div(problem.M, gemm::kTileRows) * ceil_div(problem.d, variant.columns);
  return gemm::predict_tiles(tiles, ceil_div(problem.d_in, gemm::kTileDepth), variant.columns,
                             device.multiprocessors);
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
  const Call call{problem, variant, plan, scratch.at<char>(0), context.stream.handle};
  const MatrixTensor a = call.make_a();
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
