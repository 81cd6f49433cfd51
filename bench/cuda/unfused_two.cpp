// linear_scan forward by two kernels: the product, and Tandem's gated_scan on what it left in the
// workspace.
#include "bench/cuda/unfused.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_scan.h"

namespace tandem::bench {
namespace {

/// The scan behind the product, without x.
GatedScanForwardProblem scan_of(const LinearScanForwardProblem& problem) {
  GatedScanForwardProblem scan;
  static_cast<ScanRecurrence&>(scan) = problem;
  scan.x = {nullptr, problem.T * problem.D, problem.D};
  scan.out = problem.out;
  scan.final_state = problem.final_state;
  return scan;
}

std::size_t scan_workspace_bytes(const LinearScanForwardProblem& problem) {
  return cuda::gated_scan_forward_workspace_bytes(scan_of(problem),
                                                  device_properties(problem.device));
}

}  // namespace

void unfused_two_linear_scan(const LinearScanForwardProblem& problem, const Context& context) {
  const std::size_t product_bytes = product_of_linear_scan_workspace_bytes(problem);
  const std::size_t scan_bytes = scan_workspace_bytes(problem);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch("unfused two kernels", context, product_bytes + scan_bytes);
  product_of_linear_scan(
      problem, {.stream = context.stream, .workspace = {scratch.at<void>(0), product_bytes}});
  GatedScanForwardProblem scan = scan_of(problem);
  scan.x.data = scratch.at<void>(0);
  cuda::gated_scan_forward(
      scan, {.stream = context.stream, .workspace = {scratch.at<void>(product_bytes), scan_bytes}});
}

std::size_t unfused_two_linear_scan_workspace_bytes(const LinearScanForwardProblem& problem) {
  return product_of_linear_scan_workspace_bytes(problem) + scan_workspace_bytes(problem);
}

}  // namespace tandem::bench
