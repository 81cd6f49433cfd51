// gla behind the public call: the checked problem's maker, and the backends' entry points.
#pragma once

#include <cstddef>
#include <vector>

#include "core/call_options.h"
#include "ops/gla_problem.h"
#include "tandem/context.h"
#include "tandem/ops/gla.h"
#include "tandem/variants.h"

namespace tandem {

/// Makes the checked problem; throws InvalidArgument when the arguments do not fit together.
GlaForwardProblem make_problem(const GlaForwardArgs& args);
GlaStateForwardProblem make_problem(const GlaStateForwardArgs& args);
GlaStepProblem make_problem(const GlaStepArgs& args);
GlaBackwardProblem make_problem(const GlaBackwardArgs& args);
GlaStateBackwardProblem make_problem(const GlaStateBackwardArgs& args);

namespace cpu {
/// Runs the op; throws InvalidArgument for cu_seqlens that decrease or leave [0,T].
void gla_forward(const GlaForwardProblem& problem);
void gla_state_forward(const GlaStateForwardProblem& problem);
void gla_step(const GlaStepProblem& problem);
void gla_backward(const GlaBackwardProblem& problem);
void gla_state_backward(const GlaStateBackwardProblem& problem);
std::vector<VariantInfo> gla_variants();
std::vector<VariantInfo> gla_step_variants();
}  // namespace cpu

namespace cuda {
void gla_forward(const GlaForwardProblem& problem, const Context& context,
                 const CallOptions& options = {});
std::size_t gla_forward_workspace_bytes(const GlaForwardProblem& problem,
                                        const DeviceProperties& device,
                                        const CallOptions& options = {});
void gla_state_forward(const GlaStateForwardProblem& problem, const Context& context,
                       const CallOptions& options = {});
std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options = {});
void gla_step(const GlaStepProblem& problem, const Context& context,
              const CallOptions& options = {});
void gla_backward(const GlaBackwardProblem& problem, const Context& context,
                  const CallOptions& options = {});
std::size_t gla_backward_workspace_bytes(const GlaBackwardProblem& problem,
                                         const DeviceProperties& device,
                                         const CallOptions& options = {});
void gla_state_backward(const GlaStateBackwardProblem& problem, const Context& context,
                        const CallOptions& options = {});
std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options = {});
std::vector<VariantInfo> gla_variants(const DeviceProperties& device);
std::vector<VariantInfo> gla_step_variants(const DeviceProperties& device);
}  // namespace cuda

}  // namespace tandem
