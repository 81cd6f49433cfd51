// The variants of gated_scan on CUDA, in the order in which they are tried: none is written yet.
// Host only.
#include <string>

#include "ops/gated_scan.h"
#include "tandem/error.h"

namespace tandem::cuda {
namespace {

[[noreturn]] void no_variant(const char* op) {
  throw Unsupported("[" + std::string(op) + "] no variant for CUDA devices is written yet");
}

}  // namespace

void gated_scan_forward(const GatedScanForwardProblem&, const Context&) {
  no_variant("gated_scan_forward");
}

std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardProblem&,
                                               const DeviceProperties&) {
  no_variant("gated_scan_forward");
}

void gated_scan_backward(const GatedScanBackwardProblem&, const Context&) {
  no_variant("gated_scan_backward");
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardProblem&,
                                                const DeviceProperties&) {
  no_variant("gated_scan_backward");
}

std::vector<VariantInfo> gated_scan_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
