// The scans' unfused baselines in a build without CUDA.
#include "cli/ops/scan.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

[[noreturn]] void refuse() { throw Unsupported("cuda: " + cuda_unavailable_reason()); }

}  // namespace

void unfused_gated_scan(const TensorSet&, const std::vector<void*>&, Device, const Context&) {
  refuse();
}

std::size_t unfused_gated_scan_workspace_bytes(const TensorSet&, const std::vector<void*>&,
                                               Device) {
  refuse();
}

void unfused_linear_scan(const TensorSet&, const std::vector<void*>&, Device, const Context&) {
  refuse();
}

std::size_t unfused_linear_scan_workspace_bytes(const TensorSet&, const std::vector<void*>&,
                                                Device) {
  refuse();
}

void unfused_two_linear_scan(const TensorSet&, const std::vector<void*>&, Device, const Context&) {
  refuse();
}

std::size_t unfused_two_linear_scan_workspace_bytes(const TensorSet&, const std::vector<void*>&,
                                                    Device) {
  refuse();
}

}  // namespace tandem::tools
