// rms_norm_gemm behind the public call: the checked problem's maker, and the backends' entry
// points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/rms_norm_gemm_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/rms_norm_gemm.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
RmsNormGemmForwardProblem make_problem(const RmsNormGemmForwardArgs& args);
RmsNormGemmBackwardProblem make_problem(const RmsNormGemmBackwardArgs& args);

/// The tables of the calls.
const Signature& rms_norm_gemm_forward_signature();
const Signature& rms_norm_gemm_backward_signature();

namespace cpu {
void rms_norm_gemm_forward(const RmsNormGemmForwardProblem& problem,
                           const CallOptions& options = {});
void rms_norm_gemm_backward(const RmsNormGemmBackwardProblem& problem,
                            const CallOptions& options = {});
std::vector<VariantInfo> rms_norm_gemm_variants();
}  // namespace cpu

namespace cuda {
void rms_norm_gemm_forward(const RmsNormGemmForwardProblem& problem, const Context& context,
                           const CallOptions& options = {});
std::size_t rms_norm_gemm_forward_workspace_bytes(const RmsNormGemmForwardProblem& problem,
                                                  const DeviceProperties& device,
                                                  const CallOptions& options = {});
void rms_norm_gemm_backward(const RmsNormGemmBackwardProblem& problem, const Context& context,
                            const CallOptions& options = {});
std::size_t rms_norm_gemm_backward_workspace_bytes(const RmsNormGemmBackwardProblem& problem,
                                                   const DeviceProperties& device,
                                                   const CallOptions& options = {});
std::vector<VariantInfo> rms_norm_gemm_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
