// The variants of attention_forward on CUDA, and the launches that make up a call. Host only.
#include "cuda/attention/forward.h"

#include "cuda/runtime/choose_variant.h"
#include "ops/attention.h"

namespace tandem::cuda::attention {
namespace {

constexpr const char* kOp = "attention_forward";

const ForwardVariant& choose(const AttentionForwardProblem& problem, const DeviceProperties& device,
                             const CallOptions& options) {
  return choose_variant(
      kOp, forward_variants(), device, options,
      [&](const ForwardVariant& variant) { return reason_against(variant, problem); });
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const std::vector<ForwardVariant> table;
  return table;
}

std::string reason_against(const ForwardVariant& variant, const AttentionForwardProblem& problem) {
  if (variant.dtype != problem.dtype) return "takes " + to_string(variant.dtype);
  return "";
}

}  // namespace tandem::cuda::attention

namespace tandem::cuda {

void attention_forward(const AttentionForwardProblem& problem, const Context&,
                       const CallOptions& options) {
  attention::choose(problem, device_properties(problem.device), options);
}

std::size_t attention_forward_workspace_bytes(const AttentionForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options) {
  attention::choose(problem, device, options);
  return 0;
}

}  // namespace tandem::cuda
