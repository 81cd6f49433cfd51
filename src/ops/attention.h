// attention behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/attention_problem.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/ops/attention.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
AttentionForwardProblem make_problem(const AttentionForwardArgs& args);
AttentionBackwardProblem make_problem(const AttentionBackwardArgs& args);

/// The tables of the calls.
const Signature& attention_forward_signature();
const Signature& attention_backward_signature();

namespace cpu {
/// Runs the op; throws InvalidArgument for cu_seqlens that decrease or leave [0,TQ] or [0,TK], and
/// for lengths_k that leave [0,TK].
void attention_forward(const AttentionForwardProblem& problem, const CallOptions& options = {});
void attention_backward(const AttentionBackwardProblem& problem, const CallOptions& options = {});
std::vector<VariantInfo> attention_variants();
}  // namespace cpu

namespace cuda {
void attention_forward(const AttentionForwardProblem& problem, const Context& context,
                       const CallOptions& options = {});
std::size_t attention_forward_workspace_bytes(const AttentionForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options = {});
void attention_backward(const AttentionBackwardProblem& problem, const Context& context,
                        const CallOptions& options = {});
std::size_t attention_backward_workspace_bytes(const AttentionBackwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options = {});
std::vector<VariantInfo> attention_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
