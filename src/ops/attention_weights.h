// attention_weights behind the public call: the checked problem's maker, and the backends' entry
// points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/attention_weights_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/attention_weights.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
AttentionWeightsForwardProblem make_problem(const AttentionWeightsForwardArgs& args);
AttentionWeightsBackwardProblem make_problem(const AttentionWeightsBackwardArgs& args);

/// The tables of the calls.
const Signature& attention_weights_forward_signature();
const Signature& attention_weights_backward_signature();

namespace cpu {
void attention_weights_forward(const AttentionWeightsForwardProblem& problem,
                               const CallOptions& options = {});
void attention_weights_backward(const AttentionWeightsBackwardProblem& problem,
                                const CallOptions& options = {});
std::vector<VariantInfo> attention_weights_variants();
}  // namespace cpu

namespace cuda {
void attention_weights_forward(const AttentionWeightsForwardProblem& problem,
                               const Context& context, const CallOptions& options = {});
std::size_t attention_weights_forward_workspace_bytes(const AttentionWeightsForwardProblem& problem,
                                                      const DeviceProperties& device,
                                                      const CallOptions& options = {});
void attention_weights_backward(const AttentionWeightsBackwardProblem& problem,
                                const Context& context, const CallOptions& options = {});
std::size_t attention_weights_backward_workspace_bytes(
    const AttentionWeightsBackwardProblem& problem, const DeviceProperties& device,
    const CallOptions& options = {});
std::vector<VariantInfo> attention_weights_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
