// gated_scan behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/gated_scan_carry_problem.h"
#include "ops/gated_scan_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/gated_scan.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
GatedScanForwardProblem make_problem(const GatedScanForwardArgs& args);
GatedScanBackwardProblem make_problem(const GatedScanBackwardArgs& args);
GatedScanDecayProblem make_problem(const GatedScanDecayArgs& args);
GatedScanCarryProblem make_problem(const GatedScanCarryArgs& args);
GatedScanCarryBackwardProblem make_problem(const GatedScanCarryBackwardArgs& args);

/// The tables of the calls.
const Signature& gated_scan_forward_signature();
const Signature& gated_scan_backward_signature();
const Signature& gated_scan_decay_signature();
const Signature& gated_scan_carry_signature();
const Signature& gated_scan_carry_backward_signature();

namespace cpu {
/// Runs the op; throws InvalidArgument for cu_seqlens that decrease or leave [0,T].
void gated_scan_forward(const GatedScanForwardProblem& problem, const CallOptions& options = {});
void gated_scan_backward(const GatedScanBackwardProblem& problem, const CallOptions& options = {});
void gated_scan_decay(const GatedScanDecayProblem& problem, const CallOptions& options = {});
void gated_scan_carry(const GatedScanCarryProblem& problem, const CallOptions& options = {});
void gated_scan_carry_backward(const GatedScanCarryBackwardProblem& problem,
                               const CallOptions& options = {});
std::vector<VariantInfo> gated_scan_variants();
}  // namespace cpu

namespace cuda {
void gated_scan_forward(const GatedScanForwardProblem& problem, const Context& context,
                        const CallOptions& options = {});
std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options = {});
void gated_scan_backward(const GatedScanBackwardProblem& problem, const Context& context,
                         const CallOptions& options = {});
std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options = {});
void gated_scan_decay(const GatedScanDecayProblem& problem, const Context& context,
                      const CallOptions& options = {});
void gated_scan_carry(const GatedScanCarryProblem& problem, const Context& context,
                      const CallOptions& options = {});
void gated_scan_carry_backward(const GatedScanCarryBackwardProblem& problem, const Context& context,
                               const CallOptions& options = {});
std::vector<VariantInfo> gated_scan_variants(const DeviceProperties& device);
std::vector<VariantInfo> gated_scan_carry_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
