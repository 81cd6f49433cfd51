// causal_conv1d_step_kernel: one token of the convolution per sequence, the state moved on in
// place. A thread has one channel of one sequence: its W - 1 inputs before, the token and its taps,
// all of whose loads are on the way together. The bits are the forward's.
//
// Floor: the state read and written once, x read and out written once; of a decode step's sizes,
// the time of a launch.
#pragma once

#include "cuda/causal_conv1d/tokens.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::causal_conv1d {

template <class Element, int kW>
__global__ __launch_bounds__(kThreads) void causal_conv1d_step_kernel(
    const __grid_constant__ StepParams params) {
  follow_stream();
  const CausalConv1dStepProblem& p = params.problem;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t b = index / p.D;
  const int channel = static_cast<int>(index % p.D);
  if (b >= p.B) return;
  const Element stored = static_cast<const Element*>(p.x.data)[b * p.x.row_stride + channel];
  const float token[1] = {static_cast<float>(stored)};
  History<Element, kW, 1> history;
#pragma unroll
  for (int j = 0; j < kW - 1; ++j) {
    history.x[j][0] = static_cast<float>(*state_at<Element>(p.state, b, channel, j));
  }
  Taps<Element, kW, 1> taps;
  taps.load(p, channel);
  const float z = history.convolve(taps, token[0], 0);
  static_cast<Element*>(p.out.data)[b * p.out.row_stride + channel] =
      static_cast<Element>(p.silu ? silu(z) : z);
  history.push(token);
#pragma unroll
  for (int j = 0; j < kW - 1; ++j) {
    *state_at<Element>(p.state, b, channel, j) = static_cast<Element>(history.x[j][0]);
  }
}

template <class Element>
void launch_step(const char* name, const StepParams& params, void* stream) {
  const CausalConv1dStepProblem& p = params.problem;
  const auto kernel = p.W == 4   ? causal_conv1d_step_kernel<Element, 4>
                      : p.W == 3 ? causal_conv1d_step_kernel<Element, 3>
                                 : causal_conv1d_step_kernel<Element, 2>;
  launch_kernel(
      name, kernel,
      {.blocks = static_cast<unsigned>(ceil_div(p.B * p.D, kThreads)), .threads = kThreads},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::causal_conv1d
