// causal_conv1d behind the public calls: the checked problems' makers, and the backends' entry
// points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/causal_conv1d_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/causal_conv1d.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
CausalConv1dForwardProblem make_problem(const CausalConv1dForwardArgs& args);
CausalConv1dBackwardProblem make_problem(const CausalConv1dBackwardArgs& args);
CausalConv1dStepProblem make_problem(const CausalConv1dStepArgs& args);

/// The tables of the calls.
const Signature& causal_conv1d_forward_signature();
const Signature& causal_conv1d_backward_signature();
const Signature& causal_conv1d_step_signature();

namespace cpu {
/// Runs the op; throws InvalidArgument for cu_seqlens that decrease or leave [0,T].
void causal_conv1d_forward(const CausalConv1dForwardProblem& problem,
                           const CallOptions& options = {});
void causal_conv1d_backward(const CausalConv1dBackwardProblem& problem,
                            const CallOptions& options = {});
void causal_conv1d_step(const CausalConv1dStepProblem& problem, const CallOptions& options = {});
std::vector<VariantInfo> causal_conv1d_variants();
}  // namespace cpu

namespace cuda {
void causal_conv1d_forward(const CausalConv1dForwardProblem& problem, const Context& context,
                           const CallOptions& options = {});
void causal_conv1d_backward(const CausalConv1dBackwardProblem& problem, const Context& context,
                            const CallOptions& options = {});
std::size_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardProblem& problem,
                                                   const DeviceProperties& device,
                                                   const CallOptions& options = {});
void causal_conv1d_step(const CausalConv1dStepProblem& problem, const Context& context,
                        const CallOptions& options = {});
std::vector<VariantInfo> causal_conv1d_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
