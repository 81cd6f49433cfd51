// linear_scan's CUDA entry points in a build without CUDA.
#include "ops/linear_scan.h"

#include "no_cuda/unsupported.h"

namespace tandem::cuda {

void linear_scan_forward(const LinearScanForwardProblem&, const Context&, const CallOptions&) {
  unsupported("linear_scan_forward");
}

std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardProblem&,
                                                const DeviceProperties&, const CallOptions&) {
  unsupported("linear_scan_forward");
}

void linear_scan_backward(const LinearScanBackwardProblem&, const Context&, const CallOptions&) {
  unsupported("linear_scan_backward");
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem&,
                                                 const DeviceProperties&, const CallOptions&) {
  unsupported("linear_scan_backward");
}

std::vector<VariantInfo> linear_scan_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
