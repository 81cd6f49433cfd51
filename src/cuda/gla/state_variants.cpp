// gla_state_forward on CUDA: no kernel yet.
#include "ops/gla.h"
#include "tandem/error.h"

namespace tandem::cuda {
namespace {

[[noreturn]] void unsupported(const GlaStateForwardProblem& problem) {
  throw Unsupported("[gla_state_forward] tensors on " + to_string(problem.device) +
                    ": there is no CUDA kernel yet");
}

}  // namespace

void gla_state_forward(const GlaStateForwardProblem& problem, const Context&) {
  unsupported(problem);
}

std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardProblem& problem,
                                              const DeviceProperties&) {
  unsupported(problem);
}

}  // namespace tandem::cuda
