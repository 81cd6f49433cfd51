// gated_output behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/gated_output_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/gated_output.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
GatedOutputForwardProblem make_problem(const GatedOutputForwardArgs& args);
GatedOutputBackwardProblem make_problem(const GatedOutputBackwardArgs& args);

/// The tables of the calls.
const Signature& gated_output_forward_signature();
const Signature& gated_output_backward_signature();

namespace cpu {
void gated_output_forward(const GatedOutputForwardProblem& problem,
                          const CallOptions& options = {});
void gated_output_backward(const GatedOutputBackwardProblem& problem,
                           const CallOptions& options = {});
std::vector<VariantInfo> gated_output_variants();
}  // namespace cpu

namespace cuda {
void gated_output_forward(const GatedOutputForwardProblem& problem, const Context& context,
                          const CallOptions& options = {});
std::size_t gated_output_forward_workspace_bytes(const GatedOutputForwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options = {});
void gated_output_backward(const GatedOutputBackwardProblem& problem, const Context& context,
                           const CallOptions& options = {});
std::size_t gated_output_backward_workspace_bytes(const GatedOutputBackwardProblem& problem,
                                                  const DeviceProperties& device,
                                                  const CallOptions& options = {});
std::vector<VariantInfo> gated_output_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
