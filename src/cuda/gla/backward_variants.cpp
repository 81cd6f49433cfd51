// The variants of gla_backward and gla_state_backward on CUDA: none yet. Host only.
#include <string>

#include "ops/gla.h"
#include "tandem/error.h"

namespace tandem::cuda {
namespace {

[[noreturn]] void unsupported(const char* op, Device device) {
  throw Unsupported("[" + std::string(op) + "] tensors on " + to_string(device) +
                    ": there is no CUDA kernel yet");
}

}  // namespace

void gla_backward(const GlaBackwardProblem& problem, const Context&) {
  unsupported("gla_backward", problem.forward.device);
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardProblem& problem,
                                         const DeviceProperties&) {
  unsupported("gla_backward", problem.forward.device);
}

void gla_state_backward(const GlaStateBackwardProblem& problem, const Context&) {
  unsupported("gla_state_backward", problem.device);
}

std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardProblem& problem,
                                               const DeviceProperties&) {
  unsupported("gla_state_backward", problem.device);
}

}  // namespace tandem::cuda
