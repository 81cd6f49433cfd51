// gla's CUDA entry points in a build without CUDA.
#include "ops/gla.h"

#include "no_cuda/unsupported.h"

namespace tandem::cuda {

void gla_forward(const GlaForwardProblem&, const Context&, const CallOptions&) {
  unsupported("gla_forward");
}

std::size_t gla_forward_workspace_bytes(const GlaForwardProblem&, const DeviceProperties&,
                                        const CallOptions&) {
  unsupported("gla_forward");
}

void gla_state_forward(const GlaStateForwardProblem&, const Context&, const CallOptions&) {
  unsupported("gla_state_forward");
}

std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardProblem&,
                                              const DeviceProperties&, const CallOptions&) {
  unsupported("gla_state_forward");
}

void gla_step(const GlaStepProblem&, const Context&, const CallOptions&) {
  unsupported("gla_step");
}

void gla_backward(const GlaBackwardProblem&, const Context&, const CallOptions&) {
  unsupported("gla_backward");
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardProblem&, const DeviceProperties&,
                                         const CallOptions&) {
  unsupported("gla_backward");
}

void gla_state_backward(const GlaStateBackwardProblem&, const Context&, const CallOptions&) {
  unsupported("gla_state_backward");
}

std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardProblem&,
                                               const DeviceProperties&, const CallOptions&) {
  unsupported("gla_state_backward");
}

std::vector<VariantInfo> gla_variants(const DeviceProperties&) { return {}; }
std::vector<VariantInfo> gla_step_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
