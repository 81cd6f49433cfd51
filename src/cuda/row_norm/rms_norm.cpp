// The blocks' RMS norm on CUDA. Host only.
#include "ops/rms_norm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/row_norm/row_norm.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda {
namespace {

constexpr const char* kForward = "rms_norm_forward";
constexpr const char* kBackward = "rms_norm_backward";

/// Calls launch.operator()<Element>(); a block's products have refused every other dtype.
template <class Launch>
void with_element(DType dtype, const Launch& launch) {
  if (dtype == DType::kBFloat16) launch.template operator()<__nv_bfloat16>();
#ifndef TANDEM_CUDA_DEV
  if (dtype == DType::kFloat16) launch.template operator()<__half>();
#endif
}

}  // namespace

void rms_norm_forward(const RmsNormForwardProblem& problem, const Context& context) {
  const CallScope scope(kForward, problem.device.index);
  const row_norm::NormalizeParams params = {
      row_norm::rows_of(problem.M, problem.d, problem.x, problem.norm), problem.n, nullptr,
      problem.kept_rstd};
  with_element(problem.dtype, [&]<class Element>() {
    row_norm::launch_normalize<Element>(kForward, params, context.stream.handle);
  });
}

void rms_norm_backward(const RmsNormBackwardProblem& problem, const Context& context) {
  const CallScope scope(kBackward, problem.device.index);
  const ScratchMemory scratch(kBackward, context, rms_norm_backward_workspace_bytes(problem));
  row_norm::GradientParams params;
  static_cast<row_norm::Rows&>(params) =
      row_norm::rows_of(problem.M, problem.d, problem.x, problem.norm);
  params.dn = problem.dn;
  params.addend = problem.addend;
  params.dx = problem.dx;
  params.d_weight = problem.d_weight;
  params.accumulate = problem.accumulate;
  params.partial_sums = scratch.at<float>(0);
  with_element(problem.dtype, [&]<class Element>() {
    row_norm::launch_gradient<Element>(kBackward, params, context.stream.handle);
  });
}

std::size_t rms_norm_backward_workspace_bytes(const RmsNormBackwardProblem& problem) {
  if (problem.d_weight.data == nullptr) return 0;
  return std::size_t{sizeof(float)} * row_norm::most_slices(problem.M, problem.d) * problem.d;
}

}  // namespace tandem::cuda
