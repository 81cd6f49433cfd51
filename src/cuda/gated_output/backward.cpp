// gated_output_backward on CUDA: the norm's gradient, the products of projection's backward, then
// the gate's gradient. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gated_output/forward_plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_output.h"
#include "ops/projection.h"

namespace tandem::cuda::gated_output {
namespace {

constexpr const char* kBackward = "gated_output_backward";

/// The kernels in one dtype, but for the products.
struct BackwardVariant {
  template <class Params>
  using Rows = void (*)(const char*, const Params&, void* stream);

  std::string name;
  DType dtype;
  Rows<row_norm::GradientParams> norm_gradient;
  Rows<GateParams> gate;
  Rows<GateGradientParams> gate_gradient;
};

template <class Element>
BackwardVariant make_variant(DType dtype) {
  return {std::string(kBackward) + ".sm90." + to_string(dtype), dtype,
          &row_norm::launch_gradient<Element>, &launch_gate<Element>,
          &launch_gate_gradient<Element>};
}

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table = [] {
    std::vector<BackwardVariant> rows = {make_variant<__nv_bfloat16>(DType::kBFloat16)};
#ifndef TANDEM_CUDA_DEV
    rows.push_back(make_variant<__half>(DType::kFloat16));
#endif
    return rows;
  }();
  return table;
}

const BackwardVariant& choose(const GatedOutputBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_variant(kBackward, backward_variants(), device, options,
                        [&](const BackwardVariant& one) -> std::string {
                          if (one.dtype == problem.dtype) return "";
                          return "takes " + to_string(one.dtype) + ", got " +
                                 to_string(problem.dtype);
                        });
}

bool has_norm(const GatedOutputBackwardProblem& problem) {
  return problem.norm != OutputNorm::kNone;
}
bool wants_d_a(const GatedOutputBackwardProblem& problem) {
  return problem.d_o.data != nullptr || problem.d_gate.data != nullptr ||
         problem.d_group_norm_weight.data != nullptr;
}
bool wants_products(const GatedOutputBackwardProblem& problem) {
  return wants_d_a(problem) || problem.d_weight.data != nullptr || problem.d_bias.data != nullptr;
}

/// What a call keeps in its workspace: offsets in bytes, rows padded to 16 bytes. What is not
/// needed has no bytes.
struct BackwardPlan {
  bool makes_d_sum = false;  // in the workspace: with a norm, where d_residual is not wanted
  bool makes_a = false;
  std::size_t d_sum = 0;  // all that reaches sum
  std::size_t a = 0;
  std::size_t d_a = 0;
  std::size_t norm_sums = 0;
  std::size_t group_sums = 0;
  std::size_t products = 0;
  std::size_t products_bytes = 0;
  std::size_t workspace_bytes = 0;
};

ProjectionBackwardProblem products_of(const GatedOutputBackwardProblem& problem,
                                      const BackwardPlan& plan, char* base) {
  const std::int64_t stride_in = gemm::padded(problem.d_in);
  ProjectionBackwardProblem products;
  products.dtype = problem.dtype;
  products.device = problem.device;
  products.M = problem.M;
  products.d = problem.d_in;
  products.x = problem.rows.is_o() ? problem.rows.o : problem.gated;
  if (plan.makes_a) products.x = {base + plan.a, stride_in};
  products.segment_count = 1;
  ProjectionBackwardSegment& segment = products.segments[0];
  segment.columns = problem.d;
  segment.weight = problem.weight;
  segment.out_dtype = problem.dtype;
  segment.d_out = has_norm(problem) ? problem.d_residual : problem.d_out;
  if (plan.makes_d_sum) segment.d_out = {base + plan.d_sum, gemm::padded(problem.d)};
  segment.d_weight_dtype = problem.d_weight_dtype;
  segment.d_weight = problem.d_weight;
  segment.d_bias_dtype = problem.d_bias.dtype;
  segment.d_bias = problem.d_bias.data;
  if (wants_d_a(problem)) products.dx = {base + plan.d_a, stride_in};
  if (problem.rows.is_o()) products.dx = problem.d_o;
  products.accumulate = problem.accumulate;
  return products;
}

BackwardPlan plan_backward(const GatedOutputBackwardProblem& problem,
                           const DeviceProperties& device, const CallOptions& inner) {
  BackwardPlan plan;
  WorkspaceLayout workspace;
  const auto add = [&](bool wanted, int columns) {
    return workspace.add(wanted ? problem.M * gemm::padded(columns) * 2 : 0);
  };
  plan.makes_d_sum =
      has_norm(problem) && problem.d_residual.data == nullptr && wants_products(problem);
  plan.makes_a =
      !problem.rows.is_o() && problem.gated.data == nullptr && problem.d_weight.data != nullptr;
  plan.d_sum = add(plan.makes_d_sum, problem.d);
  plan.a = add(plan.makes_a, problem.d_in);
  plan.d_a = add(wants_d_a(problem) && !problem.rows.is_o(), problem.d_in);
  const int norm_sums = problem.d_norm_bias.data != nullptr     ? 2
                        : problem.d_norm_weight.data != nullptr ? 1
                                                                : 0;
  plan.norm_sums = workspace.add(std::int64_t{norm_sums} *
                                 row_norm::most_slices(problem.M, problem.d) * problem.d * 4);
  plan.group_sums = workspace.add(
      problem.d_group_norm_weight.data != nullptr
          ? std::int64_t{most_group_slices(problem.M, problem.d_in, problem.rows.group_width)} *
                problem.d_in * 4
          : 0);
  plan.products = workspace.bytes();
  if (wants_products(problem)) {
    plan.products_bytes = projection_backward_workspace_bytes(
        products_of(problem, plan, reinterpret_cast<char*>(kWorkspaceAlignment)), device, inner);
  }
  plan.workspace_bytes = plan.products + plan.products_bytes;
  return plan;
}

struct Call {
  const GatedOutputBackwardProblem& problem;
  const BackwardVariant& variant;
  const BackwardPlan& plan;
  char* base;
  void* stream;

  row_norm::Rows norm_rows() const {
    row_norm::Rows rows;
    rows.M = problem.M;
    rows.d = problem.d;
    rows.x = problem.sum;
    rows.centers = problem.norm == OutputNorm::kLayerNorm;
    rows.weight = problem.norm_weight;
    rows.mean = problem.mean;
    rows.rstd = problem.rstd;
    return rows;
  }

  /// What reaches sum, and with it the residual; and the gradients of the norm's vectors.
  void make_d_sum() const {
    MatrixTensor to = problem.d_residual;
    if (plan.makes_d_sum) to = {base + plan.d_sum, gemm::padded(problem.d)};
    if (has_norm(problem)) {
      row_norm::GradientParams params;
      static_cast<row_norm::Rows&>(params) = norm_rows();
      params.dn = problem.d_out;
      params.addend = problem.d_sum;
      params.dx = to;
      params.d_weight = problem.d_norm_weight;
      params.d_bias = problem.d_norm_bias;
      params.accumulate = problem.accumulate;
      params.partial_sums = reinterpret_cast<float*>(base + plan.norm_sums);
      variant.norm_gradient(kBackward, params, stream);
    } else if (to.data != nullptr && problem.M > 0) {
      launch_copy(kBackward, gemm::as_tokens(problem.d_out), gemm::as_tokens(to), 1, problem.M,
                  problem.d, stream);
    }
  }

  void make_a(const MatrixTensor& a) const {
    if (!plan.makes_a) return;
    GateParams params;
    params.M = problem.M;
    params.d = problem.d_in;
    params.rows = problem.rows;
    params.gated = a;
    params.given_rstd = problem.group_rstd;
    variant.gate(kBackward, params, stream);
  }

  void make_gate_gradients(const MatrixTensor& d_a) const {
    if (problem.rows.is_o() || !wants_d_a(problem)) return;
    variant.gate_gradient(kBackward,
                          {problem.M, problem.d_in, problem.rows, problem.group_rstd, d_a,
                           problem.d_o, problem.d_gate, problem.d_group_norm_weight,
                           problem.accumulate, reinterpret_cast<float*>(base + plan.group_sums)},
                          stream);
  }
};

}  // namespace
}  // namespace tandem::cuda::gated_output

namespace tandem::cuda {

using namespace gated_output;

void gated_output_backward(const GatedOutputBackwardProblem& problem, const Context& context,
                           const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const BackwardVariant& variant = choose(problem, device, options);
  const CallOptions inner{.batch_invariant = options.batch_invariant};
  const BackwardPlan plan = plan_backward(problem, device, inner);
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kBackward, context, plan.workspace_bytes);
  const Call call{problem, variant, plan, scratch.at<char>(0), context.stream.handle};
  const ProjectionBackwardProblem products = products_of(problem, plan, call.base);
  call.make_d_sum();
  call.make_a(products.x);
  if (wants_products(problem)) {
    projection_backward(
        products, with_workspace(context, scratch.at<char>(plan.products), plan.products_bytes),
        inner);
  }
  call.make_gate_gradients(products.dx);
}

std::size_t gated_output_backward_workspace_bytes(const GatedOutputBackwardProblem& problem,
                                                  const DeviceProperties& device,
                                                  const CallOptions& options) {
  choose(problem, device, options);
  return plan_backward(problem, device, {.batch_invariant = options.batch_invariant})
      .workspace_bytes;
}

std::vector<VariantInfo> gated_output_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ForwardVariant& variant : forward_variants()) {
    infos.push_back({"gated_output", variant.name, sm90_problem(device)});
  }
  for (const BackwardVariant& variant : backward_variants()) {
    infos.push_back({"gated_output", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
