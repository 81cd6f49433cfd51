// gated_output_forward on CUDA: the gate's pass, the product with the shortest predicted time, the
// norm's pass. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

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
  const auto add = [&](const char* kind, int columns, int most_rows, ForwardVariant::Launch launch,
                       ForwardVariant::LaunchBeside launch_beside = nullptr) {
    table.push_back({std::string(kForward) + ".sm90." + to_string(dtype) + "." + kind, dtype,
                     columns, most_rows, launch, launch_beside, &launch_gate<Element>,
                     &row_norm::launch_normalize<Element>, &gemm::launch_copy<Element>});
  };
  add("m8", gemm::kFewRowsColumns, 8, &launch_few_rows<Element, 8>);
  add("m16", gemm::kFewRowsColumns, 16, &launch_few_rows<Element, 16>);
  add("m32", gemm::kFewRowsColumns, 32, &launch_few_rows<Element, 32>);
  add("m64", gemm::kFewRowsColumns, 64, &launch_few_rows<Element, 64>);
  add("n128", 128, 0, &launch_forward<Element, 128>);
  add("n256", 256, 0, &launch_forward<Element, 256>);
  add("n256.rows", 256, 0, nullptr, &launch_rows<Element, 256>);
}

const ForwardVariant& choose(const GatedOutputForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options) {
  return gemm::choose_product(kForward, forward_variants(), problem, device, options,
                              [](const ForwardVariant& one) {
                                return one.columns == kInvariantColumns && one.most_rows == 0;
                              });
}

/// The rows of a, from `first` on.
GateParams gate_params(const GatedOutputForwardProblem& problem, const MatrixTensor& a,
                       std::int64_t first, std::int64_t end) {
  GateParams params;
  params.first = first;
  params.end = end;
  params.d = problem.d_in;
  params.rows = problem.rows;
  params.group_eps = static_cast<float>(problem.group_eps);
  params.gated = a;
  params.group_rstd = problem.group_rstd;
  return params;
}

row_norm::NormalizeParams norm_params(const GatedOutputForwardProblem& problem,
                                      const MatrixTensor& sum) {
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
  return params;
}

/// Where the sum goes. The norm may write where it lies.
MatrixTensor sum_of(const GatedOutputForwardProblem& problem) {
  return problem.sum.data != nullptr ? problem.sum : problem.out;
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

  /// a, which is made, o, or is to be copied.
  MatrixTensor a() const {
    if (!plan.gates) return problem.rows.o;
    if (problem.gated.data != nullptr) return problem.gated;
    return {base + plan.a, gemm::padded(problem.d_in)};
  }

  /// Makes a as TMA can read it, or the rows of it that are not made beside the product.
  MatrixTensor make_a() const {
    if (plan.gates) variant.gate(kForward, gate_params(problem, a(), 0, plan.gated_first), stream);
    return plan.copies_a ? copy(a(), problem.M, problem.d_in, plan.a) : a();
  }

  void set(ForwardParams& params, const MatrixTensor& a) const {
    const bool few = variant.most_rows > 0;
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
    params.sum = gemm::make_target(sum_of(problem), problem.dtype, problem.dtype, problem.M,
                                   problem.d, !few);
  }

  /// The product, then the norm.
  void run_in_turn(const MatrixTensor& a, int multiprocessors) const {
    ForwardParams params{};
    set(params, a);
    variant.launch(params, multiprocessors, stream);
    if (problem.norm == OutputNorm::kNone) return;
    variant.normalize(kForward, norm_params(problem, sum_of(problem)), stream);
  }

  /// The product with the norm, and what is left of the gate, beside it.
  void run_beside(const MatrixTensor& a, int multiprocessors) const {
    RowsParams params{};
    set(params, a);
    params.gate = gate_params(problem, a, plan.gated_first, problem.M);
    params.normalizes = problem.norm != OutputNorm::kNone;
    params.norm = norm_params(problem, sum_of(problem));
    params.counters = {reinterpret_cast<std::uint32_t*>(base + plan.counters),
                       static_cast<int>(ceil_div(problem.M, gemm::kTileRows))};
    variant.launch_beside(params, multiprocessors, stream);
  }
};

/// Whether the gate may be applied beside the product.
bool gates_beside(const GatedOutputForwardProblem& problem) {
  const auto regular = [&](const MatrixTensor& matrix) {
    return reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.row_stride % 8 == 0;
  };
  return problem.rows.gate.data != nullptr && problem.rows.group_width == 0 &&
         problem.d_in % 8 == 0 && regular(problem.rows.o) && regular(problem.rows.gate) &&
         regular(problem.gated);
}

/// The rows whose tiles are computed first, all at the same time (gemm/schedule.cuh).
std::int64_t rows_of_a_wave(const GatedOutputForwardProblem& problem, const ForwardVariant& variant,
                            const DeviceProperties& device) {
  constexpr int kGroup = gemm::kScheduleGroup;
  const std::int64_t column_tiles = std::max<std::int64_t>(ceil_div(problem.d, variant.columns), 1);
  const std::int64_t groups = device.multiprocessors / (kGroup * column_tiles);
  const std::int64_t rest = device.multiprocessors % (kGroup * column_tiles);
  return (groups * kGroup + std::min<std::int64_t>(rest, kGroup)) * gemm::kTileRows;
}

/// Says why the passes over rows cannot run beside a product, "" when they can.
std::string reason_against_beside(const GatedOutputForwardProblem& problem) {
  if (problem.norm == OutputNorm::kNone && !gates_beside(problem)) {
    return "takes a norm, or a gate without a group norm";
  }
  const MatrixTensor sum = sum_of(problem);
  const bool stores =
      gemm::plan_result(as_tokens(sum), problem.dtype, matrix_extents(problem.M, problem.d))
          .problem.empty();
  const bool normalizes = problem.norm != OutputNorm::kNone;
  if (!stores || (normalizes && !row_norm::is_regular(norm_params(problem, sum), {problem.out}))) {
    return "takes rows of out and sum of whole 16 bytes at multiples of 16 bytes";
  }
  return "";
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

std::string reason_against(const ForwardVariant& variant,
                           const GatedOutputForwardProblem& problem) {
  const std::string reason = gemm::reason_against_rows(variant, problem.dtype, problem.M);
  if (!reason.empty()) return reason;
  if (variant.launch_beside != nullptr) {
    const std::string against = reason_against_beside(problem);
    if (!against.empty()) return against;
  }
  return gemm::reason_against_tiles(problem.M, ceil_div(problem.d, variant.columns));
}

ForwardPlan plan_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem,
                         const DeviceProperties& device) {
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
  const bool beside = variant.launch_beside != nullptr;
  plan.gated_first = problem.M;
  if (beside && gates_beside(problem)) {
    plan.gated_first = std::min(problem.M, rows_of_a_wave(problem, variant, device));
  }
  const int tiles = static_cast<int>(ceil_div(problem.M, gemm::kTileRows));
  plan.counters = workspace.add(beside ? sizeof(std::uint32_t) * RowCounters::count(tiles) : 0);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

double predict_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem,
                       const DeviceProperties& device) {
  const std::int64_t tiles =
      ceil_div(problem.M, gemm::kTileRows) * ceil_div(problem.d, variant.columns);
  double time = gemm::predict_tiles(tiles, ceil_div(problem.d_in, gemm::kTileDepth),
                                    variant.columns, device.multiprocessors);
  if (variant.launch_beside == nullptr) {
    // Passes over rows: a launch each, and bytes at the rate of device memory.
    constexpr double kLaunch = 2.0, kBytesPerMicrosecond = 3.8e6;
    const auto pass = [&](double bytes) { time += kLaunch + bytes / kBytesPerMicrosecond; };
    const auto elements = [&](int columns) {
      return 2.0 * static_cast<double>(problem.M) * columns;
    };
    if (gates_beside(problem)) pass(3 * elements(problem.d_in));
    if (problem.norm != OutputNorm::kNone) pass(2 * elements(problem.d));
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
  const ForwardPlan plan = plan_forward(variant, problem, device);
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kForward, context, plan.workspace_bytes);
  if (problem.M == 0) return;
  const Call call{problem, variant, plan, scratch.at<char>(0), context.stream.handle};
  const MatrixTensor a = call.make_a();
  if (variant.launch_beside != nullptr) {
    call.run_beside(a, device.multiprocessors);
  } else {
    call.run_in_turn(a, device.multiprocessors);
  }
}

std::size_t gated_output_forward_workspace_bytes(const GatedOutputForwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options) {
  return plan_forward(choose(problem, device, options), problem, device).workspace_bytes;
}

}  // namespace tandem::cuda
