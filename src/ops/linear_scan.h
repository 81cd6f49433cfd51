// linear_scan behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/linear_scan_problem.h"
#include "tandem/context.h"
#include "tandem/ops/linear_scan.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
LinearScanForwardProblem make_problem(const LinearScanForwardArgs& args);
LinearScanBackwardProblem make_problem(const LinearScanBackwardArgs& args);

namespace cpu {
/// Runs the op; throws InvalidArgument for cu_seqlens that decrease or leave [0,T].
void linear_scan_forward(const LinearScanForwardProblem& problem);
void linear_scan_backward(const LinearScanBackwardProblem& problem);
std::vector<VariantInfo> linear_scan_variants();
}  // namespace cpu

namespace cuda {
void linear_scan_forward(const LinearScanForwardProblem& problem, const Context& context,
                         const CallOptions& options = {});
std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options = {});
void linear_scan_backward(const LinearScanBackwardProblem& problem, const Context& context,
                          const CallOptions& options = {});
std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options = {});
std::vector<VariantInfo> linear_scan_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
