// rms_norm_gemm on CUDA: a norm that writes n, then projection's products of n. In the backward
// projection's dx, which is dn, the norm's gradients and in the same pass n again, where dn lay,
// then projection's d_weight. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gemm/matrix.h"
#include "cuda/projection/backward_plan.h"
#include "cuda/projection/forward_plan.h"
#include "cuda/row_norm/row_norm.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/workspace.h"
#include "ops/projection.h"
#include "ops/rms_norm_gemm.h"

namespace tandem::cuda::rms_norm_gemm {
namespace {

constexpr const char* kForward = "rms_norm_gemm_forward";
constexpr const char* kBackward = "rms_norm_gemm_backward";

template <class Params>
using Launch = void (*)(const char* name, const Params&, void* stream);

/// The norm's kernels in one dtype.
struct Variant {
  std::string name;
  DType dtype;
  Launch<row_norm::NormalizeParams> normalize;
  Launch<row_norm::GradientParams> gradient;
};

template <class Element>
Variant make_variant(const char* call, DType dtype) {
  return {std::string(call) + ".sm90." + to_string(dtype), dtype,
          &row_norm::launch_normalize<Element>, &row_norm::launch_gradient<Element>};
}

std::vector<Variant> make_variants(const char* call) {
  std::vector<Variant> rows = {make_variant<__nv_bfloat16>(call, DType::kBFloat16)};
#ifndef TANDEM_CUDA_DEV
  rows.push_back(make_variant<__half>(call, DType::kFloat16));
#endif
  return rows;
}

const std::vector<Variant>& forward_variants() {
  static const std::vector<Variant> table = make_variants(kForward);
  return table;
}
const std::vector<Variant>& backward_variants() {
  static const std::vector<Variant> table = make_variants(kBackward);
  return table;
}

const Variant& choose(const char* call, const std::vector<Variant>& table, DType dtype,
                      const DeviceProperties& device, const CallOptions& options) {
  return choose_variant(call, table, device, options, [&](const Variant& one) -> std::string {
    if (one.dtype == dtype) return "";
    return "takes " + to_string(one.dtype) + ", got " + to_string(dtype);
  });
}

struct ForwardPlan {
  std::size_t n = 0;  // [M,d], rows padded to 16 bytes
  std::size_t products = 0;
  std::size_t products_bytes = 0;
  std::size_t workspace_bytes = 0;
};

ProjectionForwardProblem products_of(const RmsNormGemmForwardProblem& problem,
                                     const ForwardPlan& plan, char* base) {
  ProjectionForwardProblem products = problem.projection;
  products.x = {base + plan.n, gemm::padded(products.d)};
  return products;
}

ForwardPlan plan_forward(const RmsNormGemmForwardProblem& problem, const DeviceProperties& device,
                         const CallOptions& inner) {
  ForwardPlan plan;
  WorkspaceLayout workspace;
  plan.n = workspace.add(problem.projection.M * gemm::padded(problem.projection.d) * 2);
  plan.products = workspace.bytes();
  plan.products_bytes = projection_forward_workspace_bytes(
      products_of(problem, plan, reinterpret_cast<char*>(kWorkspaceAlignment)), device, inner);
  plan.workspace_bytes = plan.products + plan.products_bytes;
  return plan;
}

struct BackwardPlan {
  std::size_t n = 0;  // dn, then n, or one of them alone: [M,d], rows padded to 16 bytes
  std::size_t weight_sums = 0;
  std::size_t products = 0;
  std::size_t products_bytes = 0;
  std::size_t workspace_bytes = 0;
};

bool wants_n(const RmsNormGemmBackwardProblem& problem) {
  for (const ProjectionBackwardSegment& segment : problem.projection.segments) {
    if (segment.d_weight.data != nullptr) return true;
  }
  return false;
}
bool wants_dn(const RmsNormGemmBackwardProblem& problem) {
  return problem.projection.dx.data != nullptr || problem.d_norm_weight != nullptr;
}

ProjectionBackwardProblem products_of(const RmsNormGemmBackwardProblem& problem,
                                      const BackwardPlan& plan, char* base) {
  ProjectionBackwardProblem products = problem.projection;
  const std::int64_t stride = gemm::padded(products.d);
  if (wants_n(problem)) products.x = {base + plan.n, stride};
  products.dx = {};
  if (wants_dn(problem)) products.dx = {base + plan.n, stride};
  return products;
}

BackwardPlan plan_backward(const RmsNormGemmBackwardProblem& problem,
                           const DeviceProperties& device, const CallOptions& inner) {
  const ProjectionBackwardProblem& projection = problem.projection;
  BackwardPlan plan;
  WorkspaceLayout workspace;
  const std::int64_t bytes = projection.M * gemm::padded(projection.d) * 2;
  plan.n = workspace.add(wants_n(problem) || wants_dn(problem) ? bytes : 0);
  plan.weight_sums = workspace.add(
      problem.d_norm_weight != nullptr
          ? std::int64_t{row_norm::most_slices(projection.M, projection.d)} * projection.d * 4
          : 0);
  plan.products = workspace.bytes();
  plan.products_bytes = projection_backward_workspace_bytes(
      products_of(problem, plan, reinterpret_cast<char*>(kWorkspaceAlignment)), device, inner);
  plan.workspace_bytes = plan.products + plan.products_bytes;
  return plan;
}

}  // namespace
}  // namespace tandem::cuda::rms_norm_gemm

namespace tandem::cuda {

using namespace rms_norm_gemm;

void rms_norm_gemm_forward(const RmsNormGemmForwardProblem& problem, const Context& context,
                           const CallOptions& options) {
  const ProjectionForwardProblem& projection = problem.projection;
  const DeviceProperties& device = device_properties(projection.device);
  const Variant& variant = choose(kForward, forward_variants(), projection.dtype, device, options);
  const CallOptions inner{.batch_invariant = options.batch_invariant};
  const ForwardPlan plan = plan_forward(problem, device, inner);
  const CallScope scope(variant.name, projection.device.index);
  const ScratchMemory scratch(kForward, context, plan.workspace_bytes);
  const ProjectionForwardProblem products = products_of(problem, plan, scratch.at<char>(0));
  variant.normalize(kForward,
                    {row_norm::rows_of(projection.M, projection.d, projection.x, problem.norm),
                     products.x, nullptr, problem.kept_rstd},
                    context.stream.handle);
  projection::run_forward_behind(
      products, with_workspace(context, scratch.at<char>(plan.products), plan.products_bytes),
      inner);
}

std::size_t rms_norm_gemm_forward_workspace_bytes(const RmsNormGemmForwardProblem& problem,
                                                  const DeviceProperties& device,
                                                  const CallOptions& options) {
  choose(kForward, forward_variants(), problem.projection.dtype, device, options);
  return plan_forward(problem, device, {.batch_invariant = options.batch_invariant})
      .workspace_bytes;
}

void rms_norm_gemm_backward(const RmsNormGemmBackwardProblem& problem, const Context& context,
                            const CallOptions& options) {
  const ProjectionBackwardProblem& projection = problem.projection;
  const DeviceProperties& device = device_properties(projection.device);
  const Variant& variant =
      choose(kBackward, backward_variants(), projection.dtype, device, options);
  const CallOptions inner{.batch_invariant = options.batch_invariant};
  const BackwardPlan plan = plan_backward(problem, device, inner);
  const CallScope scope(variant.name, projection.device.index);
  const ScratchMemory scratch(kBackward, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  const row_norm::Rows rows =
      row_norm::rows_of(projection.M, projection.d, projection.x, problem.norm);
  const ProjectionBackwardProblem products = products_of(problem, plan, scratch.at<char>(0));
  const auto normalize_or_differentiate = [&] {
    if (!wants_dn(problem)) {
      if (wants_n(problem)) variant.normalize(kBackward, {rows, products.x}, stream);
      return;
    }
    row_norm::GradientParams params;
    static_cast<row_norm::Rows&>(params) = rows;
    params.dn = products.dx;
    params.addend = problem.addend;
    if (wants_n(problem)) params.n = products.x;
    params.dx = projection.dx;
    params.d_weight = {problem.d_norm_weight, problem.d_norm_weight_dtype};
    params.accumulate = projection.accumulate;
    params.partial_sums = scratch.at<float>(plan.weight_sums);
    variant.gradient(kBackward, params, stream);
  };
  projection::run_backward(
      products, with_workspace(context, scratch.at<char>(plan.products), plan.products_bytes),
      inner, {}, normalize_or_differentiate);
}

std::size_t rms_norm_gemm_backward_workspace_bytes(const RmsNormGemmBackwardProblem& problem,
                                                   const DeviceProperties& device,
                                                   const CallOptions& options) {
  choose(kBackward, backward_variants(), problem.projection.dtype, device, options);
  return plan_backward(problem, device, {.batch_invariant = options.batch_invariant})
      .workspace_bytes;
}

std::vector<VariantInfo> rms_norm_gemm_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const std::vector<Variant>* table : {&forward_variants(), &backward_variants()}) {
    for (const Variant& variant : *table) {
      infos.push_back({"rms_norm_gemm", variant.name, sm90_problem(device)});
    }
  }
  return infos;
}

}  // namespace tandem::cuda
