// projection behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/projection_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/projection.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
ProjectionForwardProblem make_problem(const ProjectionForwardArgs& args);
ProjectionBackwardProblem make_problem(const ProjectionBackwardArgs& args);

/// The tables of the calls. A segment's rows carry its number: "weight0", "bias0"...
const Signature& projection_forward_signature();
const Signature& projection_backward_signature();

namespace cpu {
void projection_forward(const ProjectionForwardProblem& problem, const CallOptions& options = {});
void projection_backward(const ProjectionBackwardProblem& problem, const CallOptions& options = {});
std::vector<VariantInfo> projection_variants();
}  // namespace cpu

namespace cuda {
void projection_forward(const ProjectionForwardProblem& problem, const Context& context,
                        const CallOptions& options = {});
std::size_t projection_forward_workspace_bytes(const ProjectionForwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options = {});
void projection_backward(const ProjectionBackwardProblem& problem, const Context& context,
                         const CallOptions& options = {});
std::size_t projection_backward_workspace_bytes(const ProjectionBackwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options = {});
std::vector<VariantInfo> projection_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
