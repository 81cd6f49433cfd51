// The variants of causal_conv1d on CUDA, in the order in which they are tried. Host only.
#include "cuda/causal_conv1d/variants.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/dtype_table.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/tensor_map.h"
#include "cuda/runtime/workspace.h"
#include "ops/causal_conv1d.h"

namespace tandem::cuda::causal_conv1d {
namespace {

constexpr const char* kForward = "causal_conv1d_forward";
constexpr const char* kBackward = "causal_conv1d_backward";
constexpr const char* kStep = "causal_conv1d_step";

std::string name_of(const char* call, DType dtype, int channels) {
  return std::string(call) + ".sm90." + to_string(dtype) + (channels > 1 ? ".rows" : ".scalar");
}

/// Plans a warp's copies of a tensor that is walked along.
TensorMapPlan plan_tokens(const char* name, const TokenTensor& tensor,
                          const CausalConv1dForwardProblem& p) {
  return plan_rows(name, tensor, p.dtype, {.batch = p.B, .time = p.T, .heads = 1, .dim = p.D},
                   kStageTokens, 32 * kChannels);
}

/// Says why a tensor's tokens cannot be written so many channels at a time, "" when they can.
std::string stores_problem(const char* name, const TokenTensor& tensor, const CausalConv1d& p,
                           int channels) {
  const std::int64_t size = size_of(p.dtype), aligned = channels * size;
  const std::string multiple = "a multiple of " + std::to_string(aligned);
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % aligned != 0) {
    return std::string(name) + " does not start at " + multiple + " bytes";
  }
  const auto check = [&](const char* axis, std::int64_t extent, std::int64_t stride) {
    const std::int64_t bytes = stride * size;
    return extent <= 1 || bytes % aligned == 0
               ? ""
               : std::string(name) + " has a " + axis + " stride of " + std::to_string(bytes) +
                     " bytes, not " + multiple;
  };
  const std::string reason = check("batch", p.B, tensor.batch_stride);
  return reason.empty() ? check("time", p.T, tensor.time_stride) : reason;
}

/// Says why a tensor's tokens cannot be walked along, "" when they can or there are none.
std::string loads_problem(const char* name, const TokenTensor& tensor,
                          const CausalConv1dForwardProblem& p, int channels) {
  if (channels == 1 || p.B * p.T * p.D == 0) return "";
  return plan_tokens(name, tensor, p).problem;
}

/// Encodes the maps of a call that has tokens.
template <class Params>
void encode_maps(Params& params, const CausalConv1dForwardProblem& p, int channels) {
  if (channels == 1 || p.B * p.T * p.D == 0) return;
  for (int i = 0; i < Params::kSources; ++i) {
    params.maps[i] = encode(plan_tokens("", params.source(i), p));
  }
}

/// Says why a variant of either direction cannot run a convolution.
template <class Params>
std::string convolution_problem(const Variant<Params>& variant,
                                const CausalConv1dForwardProblem& p) {
  if (p.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(p.dtype);
  }
  if (std::string reason = length_problem(p.T); !reason.empty()) return reason;
  if (p.N > kMaxIndex) {
    return "takes up to " + std::to_string(kMaxIndex) + " sequences, got " + std::to_string(p.N);
  }
  // The shortest strips make the most CTAs.
  if (cut_tokens(p, kForwardPace, variant.channels, true, static_cast<int>(kMaxIndex)).blocks() >
      kMaxIndex) {
    return "takes at most 2^31 - 1 blocks of tokens and channels, got B x T x D = " +
           std::to_string(p.B) + " x " + std::to_string(p.T) + " x " + std::to_string(p.D);
  }
  if (p.D % variant.channels != 0) {
    return "takes D a multiple of " + std::to_string(variant.channels) + ", got " +
           std::to_string(p.D);
  }
  return loads_problem("x", p.x, p, variant.channels);
}

template <class Params, class Problem>
const Variant<Params>& choose_from(const char* call, const std::vector<Variant<Params>>& table,
                                   const Problem& problem, const DeviceProperties& device,
                                   const CallOptions& options) {
  return choose_variant(call, table, device, options, [&](const Variant<Params>& variant) {
    return reason_against(variant, problem);
  });
}

Cut cut_backward(const BackwardVariant& variant, const CausalConv1dBackwardProblem& problem,
                 int multiprocessors) {
  const Pace pace = backward_pace(static_cast<int>(size_of(variant.dtype)));
  return cut_tokens(problem.forward, pace, variant.channels,
                    problem.d_initial_state.data != nullptr, multiprocessors);
}

/// Bytes of a backward's sums of CTAs.
std::size_t bytes_of_sums(const CausalConv1dBackwardProblem& problem, const Cut& cut) {
  if (!problem.needs_sums()) return 0;
  WorkspaceLayout layout;
  layout.add(cut.token_blocks * problem.forward.D * (problem.forward.W + 1) * 4);
  return layout.bytes();
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table = [] {
    std::vector<ForwardVariant> rows;
    for_each_dtype([&]<class Element>(DType dtype) {
      rows.push_back({name_of(kForward, dtype, kChannels), dtype, kChannels,
                      &launch_forward<Element, kChannels>});
      rows.push_back({name_of(kForward, dtype, 1), dtype, 1, &launch_forward<Element, 1>});
    });
    return rows;
  }();
  return table;
}

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table = [] {
    std::vector<BackwardVariant> rows;
    for_each_dtype([&]<class Element>(DType dtype) {
      rows.push_back({name_of(kBackward, dtype, kChannels), dtype, kChannels,
                      &launch_backward<Element, kChannels>});
      rows.push_back({name_of(kBackward, dtype, 1), dtype, 1, &launch_backward<Element, 1>});
    });
    return rows;
  }();
  return table;
}

const std::vector<StepVariant>& step_variants() {
  static const auto table = [] {
    std::vector<StepVariant> rows;
    for_each_dtype([&]<class Element>(DType dtype) {
      rows.push_back(
          {std::string(kStep) + ".sm90." + to_string(dtype), dtype, 1, &launch_step<Element>});
    });
    return rows;
  }();
  return table;
}

std::string reason_against(const ForwardVariant& variant,
                           const CausalConv1dForwardProblem& problem) {
  const std::string reason = convolution_problem(variant, problem);
  return reason.empty() ? stores_problem("out", problem.out, problem, variant.channels) : reason;
}

std::string reason_against(const BackwardVariant& variant,
                           const CausalConv1dBackwardProblem& problem) {
  const CausalConv1dForwardProblem& forward = problem.forward;
  std::string reason = convolution_problem(variant, forward);
  if (reason.empty()) reason = loads_problem("d_out", problem.d_out, forward, variant.channels);
  if (reason.empty()) reason = stores_problem("dx", problem.dx, forward, variant.channels);
  return reason;
}

std::string reason_against(const StepVariant& variant, const CausalConv1dStepProblem& problem) {
  if (problem.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(problem.dtype);
  }
  if (problem.B > kMaxIndex / problem.D) {
    return "takes at most 2^31 - 1 batches times channels, got " + std::to_string(problem.B) +
           " x " + std::to_string(problem.D);
  }
  return "";
}

const ForwardVariant& choose(const CausalConv1dForwardProblem& problem,
                             const DeviceProperties& device, const CallOptions& options) {
  return choose_from(kForward, forward_variants(), problem, device, options);
}

const BackwardVariant& choose(const CausalConv1dBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_from(kBackward, backward_variants(), problem, device, options);
}

const StepVariant& choose(const CausalConv1dStepProblem& problem, const DeviceProperties& device,
                          const CallOptions& options) {
  return choose_from(kStep, step_variants(), problem, device, options);
}

}  // namespace tandem::cuda::causal_conv1d

namespace tandem::cuda {

using namespace causal_conv1d;

void causal_conv1d_forward(const CausalConv1dForwardProblem& problem, const Context& context,
                           const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const ForwardVariant& variant = choose(problem, device, options);
  const Cut cut = cut_tokens(problem, kForwardPace, variant.channels,
                             problem.final_state.data != nullptr, device.multiprocessors);
  const CallScope scope(variant.name, problem.device.index);
  if (cut.blocks() == 0) return;
  ForwardParams params{problem, cut};
  encode_maps(params, problem, variant.channels);
  variant.launch(variant.name.c_str(), params, context.stream.handle);
}

void causal_conv1d_backward(const CausalConv1dBackwardProblem& problem, const Context& context,
                            const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.forward.device);
  const BackwardVariant& variant = choose(problem, device, options);
  const Cut cut = cut_backward(variant, problem, device.multiprocessors);
  const CallScope scope(variant.name, problem.forward.device.index);
  const ScratchMemory scratch(kBackward, context, bytes_of_sums(problem, cut));
  BackwardParams params{problem, cut};
  encode_maps(params, problem.forward, variant.channels);
  if (problem.needs_sums()) params.sums = scratch.at<float>(0);
  variant.launch(variant.name.c_str(), params, context.stream.handle);
}

std::size_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardProblem& problem,
                                                   const DeviceProperties& device,
                                                   const CallOptions& options) {
  const BackwardVariant& variant = choose(problem, device, options);
  return bytes_of_sums(problem, cut_backward(variant, problem, device.multiprocessors));
}

void causal_conv1d_step(const CausalConv1dStepProblem& problem, const Context& context,
                        const CallOptions& options) {
  const StepVariant& variant = choose(problem, device_properties(problem.device), options);
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  variant.launch(variant.name.c_str(), {problem}, context.stream.handle);
}

std::vector<VariantInfo> causal_conv1d_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  const auto append = [&](const auto& table) {
    for (const auto& variant : table) {
      infos.push_back({"causal_conv1d", variant.name, sm90_problem(device)});
    }
  };
  append(forward_variants());
  append(backward_variants());
  append(step_variants());
  return infos;
}

}  // namespace tandem::cuda
