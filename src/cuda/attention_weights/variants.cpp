// The variants of attention_weights on CUDA. Host only.
#include "cuda/runtime/choose_variant.h"
#include "ops/attention_weights.h"

namespace tandem::cuda {
namespace {

/// One way to run a call. There is none yet.
struct Variant {
  std::string name;
  DType dtype;
};

const Variant& choose(const char* call, DType dtype, const DeviceProperties& device,
                      const CallOptions& options) {
  static const std::vector<Variant> table;
  return choose_variant(call, table, device, options, [&](const Variant& one) {
    return one.dtype == dtype ? "" : "takes " + to_string(one.dtype);
  });
}

}  // namespace

void attention_weights_forward(const AttentionWeightsForwardProblem& problem, const Context&,
                               const CallOptions& options) {
  choose("attention_weights_forward", problem.dtype, device_properties(problem.device), options);
}

std::size_t attention_weights_forward_workspace_bytes(const AttentionWeightsForwardProblem& problem,
                                                      const DeviceProperties& device,
                                                      const CallOptions& options) {
  choose("attention_weights_forward", problem.dtype, device, options);
  return 0;
}

void attention_weights_backward(const AttentionWeightsBackwardProblem& problem, const Context&,
                                const CallOptions& options) {
  const AttentionSizes& sizes = problem.forward;
  choose("attention_weights_backward", sizes.dtype, device_properties(sizes.device), options);
}

std::size_t attention_weights_backward_workspace_bytes(
    const AttentionWeightsBackwardProblem& problem, const DeviceProperties& device,
    const CallOptions& options) {
  choose("attention_weights_backward", problem.forward.dtype, device, options);
  return 0;
}

std::vector<VariantInfo> attention_weights_variants(const DeviceProperties&) { return {}; }

}  // namespace tandem::cuda
