#include "cuda/linear_scan/composed.h"

#include "cuda/gated_scan/variants.h"
#include "cuda/linear_scan/products.h"
#include "cuda/runtime/copy.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"
#include "ops/projection.h"

namespace tandem::cuda::linear_scan {
namespace {

MatrixTensor x_at(const LinearScanForwardProblem& problem, const ComposedPlan& plan, char* base) {
  return {base + plan.x, problem.D};
}

ProjectionForwardProblem product(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                                 char* base) {
  const MatrixTensor u =
      plan.copies_u ? rows_at(base + plan.u, problem.d) : *as_rows(problem.u, problem.B, problem.T);
  return product_of_u(problem, u, x_at(problem, plan, base), DType::kFloat32);
}

gated_scan::OfProductProblem scan(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                                  char* base) {
  gated_scan::OfProductProblem scan;
  static_cast<ScanRecurrence&>(scan) = problem;
  scan.x = as_tokens(x_at(problem, plan, base), problem.T);
  scan.out = problem.out;
  scan.final_state = problem.final_state;
  scan.rounded_x = problem.x;
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
  WorkspaceLayout workspace;
  plan.u = workspace.add(plan.copies_u ? 2 * elements_of_rows(problem, problem.d) : 0);
  plan.x = workspace.add(4 * problem.B * problem.T * problem.D);
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
  const ProjectionForwardProblem x = product(problem, plan, base);
  if (plan.copies_u) {
    launch_copy("linear_scan_forward", problem.u, as_tokens(x.x, problem.T), problem.B, problem.T,
                problem.d, context.stream.handle);
  }
  projection_forward(x, with_workspace(context, base + plan.product, plan.product_bytes), options);
  gated_scan::run(scan(problem, plan, base), {.stream = context.stream}, options);
}

}  // namespace tandem::cuda::linear_scan
