// gated_scan's CUDA entry points in a build without CUDA.
#include "ops/gated_scan.h"

#include "no_cuda/unsupported.h"

namespace tandem::cuda {

void gated_scan_forward(const GatedScanForwardProblem&, const Context&, const CallOptions&) {
  unsupported("gated_scan_forward");
}

std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardProblem&,
                                               const DeviceProperties&, const CallOptions&) {
  unsupported("gated_scan_forward");
}

void gated_scan_backward(const GatedScanBackwardProblem&, const Context&, const CallOptions&) {
  unsupported("gated_scan_backward");
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardProblem&,
                                                const DeviceProperties&, const CallOptions&) {
  unsupported("gated_scan_backward");
}

std::vector<VariantInfo> gated_scan_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
