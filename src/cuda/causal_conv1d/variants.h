// The tables behind cuda::causal_conv1d_*, for their tests.
#pragma once

#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/causal_conv1d/params.h"
#include "tandem/device.h"

namespace tandem::cuda::causal_conv1d {

template <class Params>
struct Variant {
  std::string name;
  DType dtype;
  int channels;  // of a thread: with several, tensors must be aligned to them
  void (*launch)(const char* name, const Params& params, void* stream);
};

using ForwardVariant = Variant<ForwardParams>;
using BackwardVariant = Variant<BackwardParams>;
using StepVariant = Variant<StepParams>;

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant,
                           const CausalConv1dForwardProblem& problem);
std::string reason_against(const BackwardVariant& variant,
                           const CausalConv1dBackwardProblem& problem);
std::string reason_against(const StepVariant& variant, const CausalConv1dStepProblem& problem);

/// Returns the first variant that can run a problem; throws Unsupported if none can.
const ForwardVariant& choose(const CausalConv1dForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options = {});
const BackwardVariant& choose(const CausalConv1dBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options = {});
const StepVariant& choose(const CausalConv1dStepProblem& problem, const DeviceProperties& device,
                          const CallOptions& options = {});

const std::vector<ForwardVariant>& forward_variants();
const std::vector<BackwardVariant>& backward_variants();
const std::vector<StepVariant>& step_variants();

}  // namespace tandem::cuda::causal_conv1d
