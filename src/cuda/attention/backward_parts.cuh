// attention_backward_parts_kernel: dk and dv from what the parts of a key head have of them.
// A thread per eight columns of a row, parts in order; a row of CTAs for each of the two.
//
// Floor: the parts read in fp32, dk and dv written.
#pragma once

#include "cuda/attention/backward_params.h"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

constexpr int kPartsThreads = 256;

template <class Element>
__global__ __launch_bounds__(kPartsThreads) void attention_backward_parts_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  follow_stream();
  const AttentionForwardProblem& problem = params.problem.forward;
  const bool keys = blockIdx.y == 0;
  const StridedTensor& to = keys ? params.problem.dk : params.problem.dv;
  if (to.data == nullptr) return;
  const int columns = keys ? problem.K : problem.V, eights = (columns + 7) / 8;
  const std::int64_t values = problem.B * problem.TK * problem.HKV * eights;
  const std::int64_t index = std::int64_t{blockIdx.x} * kPartsThreads + threadIdx.x;
  if (index >= values) return;
  const auto* from =
      reinterpret_cast<const Words<float>*>(keys ? params.key_parts : params.value_parts) + index;
  float sum[8];
  unpack(*from, sum);
  for (int part = 1; part < params.parts.count(); ++part) {
    float own[8];
    unpack(from[part * values], own);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += own[i];
  }
  const float scale = keys ? problem.scale : 1.0f;
#pragma unroll
  for (float& value : sum) value = scale == 0.0f ? 0.0f : value * scale;  // also of 0 * NaN
  const int column = static_cast<int>(index % eights) * 8;
  const std::int64_t row = index / eights, token = row / problem.HKV;
  store_eight(static_cast<Element*>(to.data) + token / problem.TK * to.batch_stride +
                  token % problem.TK * to.time_stride + row % problem.HKV * to.head_stride + column,
              columns - column, sum);
}

}  // namespace tandem::cuda::attention
