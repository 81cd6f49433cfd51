// The variants of linear_scan on CUDA, in the order in which they are tried: none is written yet.
// Host only.
#include <string>

#include "ops/linear_scan.h"
#include "tandem/error.h"

namespace tandem::cuda {
namespace {

[[noreturn]] void no_variant(const char* op) {
  throw Unsupported("[" + std::string(op) + "] no variant for CUDA devices is written yet");
}

}  // namespace

void linear_scan_forward(const LinearScanForwardProblem&, const Context&) {
  no_variant("linear_scan_forward");
}

std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardProblem&,
                                                const DeviceProperties&) {
  no_variant("linear_scan_forward");
}

void linear_scan_backward(const LinearScanBackwardProblem&, const Context&) {
  no_variant("linear_scan_backward");
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem&,
                                                 const DeviceProperties&) {
  no_variant("linear_scan_backward");
}

std::vector<VariantInfo> linear_scan_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
