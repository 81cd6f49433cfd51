#include "cuda/linear_scan/composed.h"

#include "cuda/gated_scan/variants.h"
#include "cuda/linear_scan/products.h"
#include "cuda/runtime/copy.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"
#include "ops/projection.h"

namespace tandem::cuda::linear_scan {
namespace {

/// x's first part: what the call keeps, where that lies as a matrix does.
MatrixTensor x_at(const LinearScanForwardProblem& problem, const ComposedPlan& plan, char* base) {
  return plan.makes_x ? rows_at(base + plan.x, problem.D)
                      : *as_rows(problem.x, problem.B, problem.T);
}
MatrixTensor x_rest_at(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                       char* base) {
  return rows_at(base + plan.x_rest, problem.D);
}

ProjectionForwardProblem product(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                                 char* base) {
  const MatrixTensor u =
      plan.copies_u ? rows_at(base + plan.u, problem.d) : *as_rows(problem.u, problem.B, problem.T);
  ProjectionForwardProblem product = product_of_u(problem, u, x_at(problem, plan, base));
  product.segments[0].rest = x_rest_at(problem, plan, base);
  return product;
}

gated_scan::OfProductProblem scan(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                                  char* base) {
  gated_scan::OfProductProblem scan;
  static_cast<ScanRecurrence&>(scan) = problem;
  scan.x = as_tokens(x_at(problem, plan, base), problem.T);
  scan.x_rest = as_tokens(x_rest_at(problem, plan, base), problem.T);
  scan.out = problem.out;
  scan.final_state = problem.final_state;
  scan.states = problem.states;
  return scan;
}

}  // namespace

ComposedPlan plan_composed(const LinearScanForwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant) {
  const CallOptions options{.batch_invariant = batch_invariant};
  const auto anywhere = reinterpret_cast<char*>(kWorkspaceAlignment);
  ComposedPlan plan;
  plan.copies_u = !as_rows(problem.u, problem.B, problem.T);
  plan.makes_x = problem.x.data == nullptr || !as_rows(problem.x, problem.B, problem.T);
  WorkspaceLayout workspace;
  plan.u = workspace.add(plan.copies_u ? 2 * elements_of_rows(problem, problem.d) : 0);
  const std::int64_t x_bytes = 2 * elements_of_rows(problem, problem.D);
  plan.x = workspace.add(plan.makes_x ? x_bytes : 0);
  plan.x_rest = workspace.add(x_bytes);
  plan.product_bytes =
      projection_forward_workspace_bytes(product(problem, plan, anywhere), device, options);
  plan.product = workspace.add(static_cast<std::int64_t>(plan.product_bytes));
  plan.workspace_bytes = workspace.bytes();
  gated_scan::choose(scan(problem, plan, anywhere), device, options);
  return plan;
}

void run_composed(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                  const Context& context, bool batch_invariant) {
  const CallOptions options{.batch_invariant = batch_invariant};
  const ScratchMemory scratch("linear_scan_forward", context, plan.workspace_bytes);
  char* const base = scratch.at<char>(0);
  const ProjectionForwardProblem x_of_u = product(problem, plan, base);
  if (plan.copies_u) {
    launch_copy("linear_scan_forward", problem.u, as_tokens(x_of_u.x, problem.T), problem.B,
                problem.T, problem.d, context.stream.handle);
  }
  projection_forward(x_of_u, with_workspace(context, base + plan.product, plan.product_bytes),
                     options);
  gated_scan::run(scan(problem, plan, base), {.stream = context.stream}, options);
  if (plan.makes_x && problem.x.data != nullptr) {
    launch_copy("linear_scan_forward", as_tokens(x_of_u.segments[0].out, problem.T), problem.x,
                problem.B, problem.T, problem.D, context.stream.handle);
  }
}

}  // namespace tandem::cuda::linear_scan
