#include "cuda/linear_scan/composed.h"

#include <algorithm>

#include "cuda/gated_scan/variants.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_scan.h"

namespace tandem::cuda::linear_scan {
namespace {

constexpr CallOptions kBatchInvariant{.batch_invariant = true};

/// The scan over x: every tensor in fp32, in the workspace or the caller's.
GatedScanForwardProblem scan_problem(const LinearScanForwardProblem& problem,
                                     const ComposedPlan& plan, char* base) {
  const auto at = [&](std::size_t offset) { return tokens_at(base, offset, problem.T, problem.D); };
  GatedScanForwardProblem scan;
  static_cast<ScanRecurrence&>(scan) = problem;
  scan.dtype = scan.decay_dtype = DType::kFloat32;
  scan.x = at(plan.x);
  if (problem.decay_dtype != DType::kFloat32) scan.decay = at(plan.decay);
  if (problem.gate.data) scan.gate = at(plan.gate);
  scan.out = at(plan.out);
  scan.final_state = problem.final_state;
  return scan;
}

}  // namespace

ComposedPlan plan_composed(const LinearScanForwardProblem& problem) {
  const std::int64_t tokens = problem.B * problem.T;
  ComposedPlan plan;
  plan.copies_u = tokens > 0 && !tma_reads_u(problem);
  plan.copies_weight = tokens > 0 && !tma_reads_weight(problem);
  WorkspaceLayout workspace;
  const auto add = [&](bool wanted, std::int64_t elements, int size) {
    return workspace.add(wanted ? elements * size : 0);
  };
  plan.u = add(plan.copies_u, tokens * gemm::padded(problem.d), 2);
  plan.weight = add(plan.copies_weight, problem.D * gemm::padded(problem.d), 2);
  plan.x = add(true, tokens * problem.D, 4);
  plan.decay = add(problem.decay_dtype != DType::kFloat32, tokens * problem.D, 4);
  plan.gate = add(problem.gate.data, tokens * problem.D, 4);
  plan.out = add(true, tokens * problem.D, 4);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

std::string reason_against_composed(DType dtype, const LinearScanForwardProblem& problem,
                                    const DeviceProperties& device) {
  const std::string reason = reason_against_products(dtype, problem);
  if (!reason.empty()) return reason;
  try {
    const auto base = reinterpret_cast<char*>(kWorkspaceAlignment);
    gated_scan_forward_workspace_bytes(scan_problem(problem, plan_composed(problem), base), device,
                                       kBatchInvariant);
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

void run_composed(const char* op, const LinearScanForwardProblem& problem, const Context& context) {
  const ComposedPlan plan = plan_composed(problem);
  const ScratchMemory scratch(op, context, plan.workspace_bytes);
  char* const base = scratch.at<char>(0);
  void* const stream = context.stream.handle;
  const BackwardVariant& kernels =
      *std::find_if(backward_variants().begin(), backward_variants().end(),
                    [&](const BackwardVariant& one) { return one.dtype == problem.dtype; });
  const GatedScanForwardProblem scan = scan_problem(problem, plan, base);
  const bool tokens = problem.T > 0;
  const auto convert = [&](BackwardVariant::Convert launch, const TokenTensor& from,
                           const TokenTensor& to) {
    if (tokens) launch(op, {problem.B, problem.T, problem.D, from, to}, stream);
  };
  if (tokens) {
    const Projection projection{op,
                                kernels,
                                problem,
                                plan.copies_u ? base + plan.u : nullptr,
                                plan.copies_weight ? base + plan.weight : nullptr,
                                stream};
    projection.copy_operands();
    projection.write(reinterpret_cast<float*>(base + plan.x));
  }
  if (problem.decay_dtype != DType::kFloat32) convert(kernels.widen, problem.decay, scan.decay);
  if (problem.gate.data) convert(kernels.widen, problem.gate, scan.gate);
  if (tokens && problem.states != nullptr) {  // before the final state replaces the initial one
    gated_scan::keep_states(scan, problem.states, {.stream = context.stream});
  }
  gated_scan_forward(scan, {.stream = context.stream}, kBatchInvariant);
  convert(kernels.narrow, scan.out, problem.out);
  if (problem.x.data) convert(kernels.narrow, scan.x, problem.x);
}

}  // namespace tandem::cuda::linear_scan
