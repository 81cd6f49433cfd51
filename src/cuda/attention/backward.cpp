// The variants of attention_backward on CUDA, and the launches that make up a call. Host only.
#include "cuda/attention/backward.h"

#include "cuda/attention/forward.h"
#include "cuda/runtime/choose_variant.h"
#include "ops/attention.h"

namespace tandem::cuda::attention {
namespace {

constexpr const char* kOp = "attention_backward";

const BackwardVariant& choose(const AttentionBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_variant(
      kOp, backward_variants(), device, options,
      [&](const BackwardVariant& variant) { return reason_against(variant, problem); });
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const std::vector<BackwardVariant> table;
  return table;
}

std::string reason_against(const BackwardVariant& variant,
                           const AttentionBackwardProblem& problem) {
  if (variant.dtype != problem.forward.dtype) return "takes " + to_string(variant.dtype);
  return "";
}

}  // namespace tandem::cuda::attention

namespace tandem::cuda {

void attention_backward(const AttentionBackwardProblem& problem, const Context&,
                        const CallOptions& options) {
  attention::choose(problem, device_properties(problem.forward.device), options);
}

std::size_t attention_backward_workspace_bytes(const AttentionBackwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options) {
  attention::choose(problem, device, options);
  return 0;
}

std::vector<VariantInfo> attention_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> all;
  const std::string reason = sm90_problem(device);
  for (const auto& variant : attention::forward_variants()) {
    all.push_back({"attention", variant.name, reason});
  }
  for (const auto& variant : attention::backward_variants()) {
    all.push_back({"attention", variant.name, reason});
  }
  return all;
}

}  // namespace tandem::cuda
