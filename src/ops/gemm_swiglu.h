// gemm_swiglu behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/gemm_swiglu_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/gemm_swiglu.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
GemmSwigluForwardProblem make_problem(const GemmSwigluForwardArgs& args);
GemmSwigluBackwardProblem make_problem(const GemmSwigluBackwardArgs& args);

/// The tables of the calls.
const Signature& gemm_swiglu_forward_signature();
const Signature& gemm_swiglu_backward_signature();

namespace cpu {
void gemm_swiglu_forward(const GemmSwigluForwardProblem& problem, const CallOptions& options = {});
void gemm_swiglu_backward(const GemmSwigluBackwardProblem& problem,
                          const CallOptions& options = {});
std::vector<VariantInfo> gemm_swiglu_variants();
}  // namespace cpu

namespace cuda {
void gemm_swiglu_forward(const GemmSwigluForwardProblem& problem, const Context& context,
                         const CallOptions& options = {});
std::size_t gemm_swiglu_forward_workspace_bytes(const GemmSwigluForwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options = {});
void gemm_swiglu_backward(const GemmSwigluBackwardProblem& problem, const Context& context,
                          const CallOptions& options = {});
std::size_t gemm_swiglu_backward_workspace_bytes(const GemmSwigluBackwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options = {});
std::vector<VariantInfo> gemm_swiglu_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
