// attention_backward_rows_kernel: what the backward needs of each query's row, and a clean start.
//
// A CTA per tile of queries and head: log_sum_exp in base 2, inf for rows that see no key or do not
// exist, so that P = 2^(s - inf) is 0 there; o . d_o - d_log_sum_exp, what softmax's gradient
// subtracts from d_o . v. Zeroes the turns and the tickets of attention_backward_kernel.
#pragma once

#include "cuda/attention/backward_config.h"
#include "cuda/attention/backward_item.cuh"
#include "cuda/parts/eight.cuh"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

constexpr int kRowsThreads = 128;

template <class Config>
__global__ __launch_bounds__(kRowsThreads) void attention_backward_rows_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  using Element = typename Config::Element;
  constexpr int kRows = Config::kQueries;
  constexpr int kLanes = 16;  // of a row
  follow_stream_before_own_kernel();
  const AttentionForwardProblem& problem = params.problem.forward;
  const std::int64_t head = blockIdx.x % problem.H, tile = blockIdx.x / problem.H;
  int n, block;
  find_block(problem.cu_seqlens_q, static_cast<int>(problem.N), problem.TQ, kRows,
             static_cast<int>(tile), n, block);
  SequenceSpan span;
  span.set(problem, n);
  const std::int64_t index = head * params.query_tiles + tile;
  if (threadIdx.x == 0) params.turns[index] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *params.tickets = 0;

  const StridedTensor &o = problem.o, &d_o = params.problem.d_o;
  const auto row_of = [&](const StridedTensor& tensor, std::int64_t time) {
    return static_cast<const Element*>(tensor.data) + span.batch * tensor.batch_stride +
           time * tensor.time_stride + head * tensor.head_stride;
  };
#pragma unroll 4
  for (int row = threadIdx.x / kLanes; row < kRows; row += kRowsThreads / kLanes) {
    const int query = block * kRows + row;
    const std::int64_t time = span.query_begin + query;
    const bool exists = query < span.queries;
    float sum = 0.0f;
    if (exists) {
      for (int column = threadIdx.x % kLanes * 8; column < problem.V; column += kLanes * 8) {
        float of_o[8], of_d_o[8];
        load_eight(row_of(o, time) + column, problem.V - column, of_o);
        load_eight(row_of(d_o, time) + column, problem.V - column, of_d_o);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += of_o[i] * of_d_o[i];
      }
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    }
    if (threadIdx.x % kLanes != 0) continue;
    const std::int64_t from = (span.batch * problem.H + head) * problem.TQ + time;
    const float log_sum_exp = exists ? problem.log_sum_exp[from] : -INFINITY;
    const bool sees = log_sum_exp != -INFINITY;
    if (params.problem.d_log_sum_exp != nullptr && sees) sum -= params.problem.d_log_sum_exp[from];
    params.log_sum_exp[index * kRows + row] = sees ? log_sum_exp * kLog2E : INFINITY;
    params.row_products[index * kRows + row] = sees ? sum : 0.0f;
  }
}

}  // namespace tandem::cuda::attention
