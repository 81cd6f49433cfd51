// linear_scan_backward on CUDA, composed of projection's calls and gated_scan_backward. Host only.
//
// The scan's gradients come from gated_scan_backward, over the caller's tensors and x, which the
// forward kept or a product computes again. It rounds dx to 16 bits, of which du = dx W and
// d_weight = dx^T u are made.
#include "cuda/linear_scan/backward.h"

#include <algorithm>

#include "cuda/linear_scan/products.h"
#include "cuda/projection/backward_plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/copy.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_scan.h"
#include "ops/linear_scan.h"
#include "ops/projection.h"

namespace tandem::cuda::linear_scan {
namespace {

constexpr const char* kBackward = "linear_scan_backward";

/// The calls that one call is made of, over its workspace.
struct Calls {
  const LinearScanBackwardProblem& problem;
  const BackwardPlan& plan;
  char* base;

  MatrixTensor rows(const TokenTensor& tokens, bool copies, std::size_t offset) const {
    const LinearScanForwardProblem& f = problem.forward;
    if (tokens.data == nullptr) return {};
    return copies ? rows_at(base + offset, f.d) : *as_rows(tokens, f.B, f.T);
  }
  MatrixTensor u() const { return rows(problem.forward.u, plan.copies_u, plan.u); }
  MatrixTensor du() const { return rows(problem.du, plan.copies_du, plan.du); }
  MatrixTensor x() const { return rows_at(base + plan.x, problem.forward.D); }
  MatrixTensor dx() const { return rows_at(base + plan.dx, problem.forward.D); }

  ProjectionForwardProblem product() const { return product_of_u(problem.forward, u(), x()); }
  GatedScanBackwardProblem scan() const {
    const LinearScanForwardProblem& f = problem.forward;
    GatedScanBackwardProblem scan;
    static_cast<ScanRecurrence&>(scan.forward) = f;
    static_cast<ScanGradients&>(scan) = problem;
    scan.forward.x = plan.projects    ? as_tokens(x(), f.T)
                     : problem.x.data ? problem.x
                                      : problem.d_out;  // not read: no states are needed
    if (plan.needs_dx) scan.dx = as_tokens(dx(), f.T);
    return scan;
  }
  ProjectionBackwardProblem products() const {
    return products_of_dx(problem.forward, dx(), u(), du(), problem.d_weight);
  }
};

struct Choice {
  const BackwardVariant& variant;
  BackwardPlan plan;
};

Choice choose(const LinearScanBackwardProblem& problem, const DeviceProperties& device,
              const CallOptions& options) {
  BackwardPlan plan;
  const BackwardVariant& variant = choose_variant(
      kBackward, backward_variants(), device, options,
      [&](const BackwardVariant& one) -> std::string {
        if (problem.forward.dtype != one.dtype) {
          return "takes " + to_string(one.dtype) + ", got " + to_string(problem.forward.dtype);
        }
        try {
          plan = plan_backward(problem, device, options.batch_invariant);
        } catch (const Unsupported& error) {
          return error.what();
        }
        return "";
      });
  return {variant, plan};
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table = [] {
    std::vector<BackwardVariant> rows;
    rows.push_back({"linear_scan_backward.sm90.bf16", DType::kBFloat16});
#ifndef TANDEM_CUDA_DEV
    rows.push_back({"linear_scan_backward.sm90.fp16", DType::kFloat16});
#endif
    return rows;
  }();
  return table;
}

BackwardPlan plan_backward(const LinearScanBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant) {
  const LinearScanForwardProblem& f = problem.forward;
  const CallOptions options{.batch_invariant = batch_invariant};
  BackwardPlan plan;
  const bool needs_x = (problem.d_decay.data || problem.d_gate.data) && f.B * f.T > 0;
  plan.projects = needs_x && problem.x.data == nullptr;
  plan.needs_dx = problem.du.data || problem.d_weight.data;
  plan.copies_u = (plan.projects || problem.d_weight.data) && !as_rows(f.u, f.B, f.T);
  plan.copies_du = problem.du.data && !as_rows(problem.du, f.B, f.T);

  WorkspaceLayout workspace;
  const auto add_rows = [&](bool wanted, int columns) {
    return workspace.add(wanted ? 2 * elements_of_rows(f, columns) : 0);
  };
  plan.u = add_rows(plan.copies_u, f.d);
  plan.x = add_rows(plan.projects, f.D);
  plan.dx = add_rows(plan.needs_dx, f.D);
  plan.du = add_rows(plan.copies_du, f.d);
  const Calls calls{problem, plan, reinterpret_cast<char*>(kWorkspaceAlignment)};
  plan.inner_bytes = gated_scan_backward_workspace_bytes(calls.scan(), device, options);
  if (plan.projects) {
    plan.inner_bytes = std::max(
        plan.inner_bytes, projection_forward_workspace_bytes(calls.product(), device, options));
  }
  if (plan.needs_dx) {
    plan.inner_bytes = std::max(
        plan.inner_bytes, projection_backward_workspace_bytes(calls.products(), device, options));
  }
  plan.inner = workspace.add(static_cast<std::int64_t>(plan.inner_bytes));
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

}  // namespace tandem::cuda::linear_scan

namespace tandem::cuda {

using namespace linear_scan;

void linear_scan_backward(const LinearScanBackwardProblem& problem, const Context& context,
                          const CallOptions& options) {
  const LinearScanForwardProblem& f = problem.forward;
  const DeviceProperties& device = device_properties(f.device);
  const auto [variant, plan] = choose(problem, device, options);
  const CallOptions inner_options{.batch_invariant = options.batch_invariant};
  const CallScope scope(variant.name, f.device.index);
  const ScratchMemory scratch(kBackward, context, plan.workspace_bytes);
  const Calls calls{problem, plan, scratch.at<char>(0)};
  const Context inner = with_workspace(context, calls.base + plan.inner, plan.inner_bytes);
  void* const stream = context.stream.handle;
  if (plan.copies_u) {
    launch_copy(kBackward, f.u, as_tokens(calls.u(), f.T), f.B, f.T, f.d, stream);
  }
  if (plan.projects) projection_forward(calls.product(), inner, inner_options);
  gated_scan_backward(calls.scan(), inner, inner_options);
  if (!plan.needs_dx) return;
  projection::run_backward(calls.products(), inner, inner_options, {f.cu_seqlens, f.N});
  if (plan.copies_du) {
    launch_copy(kBackward, as_tokens(calls.du(), f.T), problem.du, f.B, f.T, f.d, stream);
  }
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options) {
  return choose(problem, device, options).plan.workspace_bytes;
}

}  // namespace tandem::cuda
