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

template <class Config>
__global__ __launch_bounds__(Config::kRowsThreads) void attention_backward_rows_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  using Element = typename Config::Element;
  constexpr int kRows = Config::kQueries;
  constexpr int kLanes = Config::kRowLanes;
  constexpr int kOwn = kRows * kLanes / Config::kRowsThreads;  // rows of a thread
  follow_stream_before_own_kernel();
  const AttentionForwardProblem& problem = params.problem.forward;
  if (blockIdx.x == 0 && threadIdx.x == 0) *params.tickets = 0;
  const std::int64_t head = blockIdx.x % problem.H, tile = blockIdx.x / problem.H;
  if (tile >= params.query_tiles) return;  // there are no queries
  int n, block;
  find_block(problem.cu_seqlens_q, static_cast<int>(problem.N), problem.TQ, kRows,
             static_cast<int>(tile), n, block);
  if (block < 0) return;
  SequenceSpan span;
  span.set(problem, n);
  const std::int64_t index = head * params.query_tiles + tile;
  if (threadIdx.x == 0) params.turns[index] = 0;

  const int lane = threadIdx.x % kLanes, column = lane * 8;
  const int left = static_cast<int>(problem.V) - column;  // of a row's columns
  const auto row_of = [&](int i) {
    return static_cast<int>(threadIdx.x) / kLanes + i * (Config::kRowsThreads / kLanes);
  };
  const auto at = [&](const StridedTensor& tensor, int row) {
    return static_cast<const Element*>(tensor.data) + span.batch * tensor.batch_stride +
           (span.query_begin + std::int64_t{block} * kRows + row) * tensor.time_stride +
           head * tensor.head_stride + column;
  };
  const auto exists = [&](int row) { return block * kRows + row < span.queries; };
  const std::int64_t first =
      (span.batch * problem.H + head) * problem.TQ + span.query_begin + std::int64_t{block} * kRows;
  // why all loads first: they are what this kernel waits for.
  Words<Element> o[kOwn], d_o[kOwn];
  float log_sum_exp[kOwn], d_log_sum_exp[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int row = row_of(i);
    o[i] = load_words(at(problem.o, row), exists(row) && left >= 8);
    d_o[i] = load_words(at(params.problem.d_o, row), exists(row) && left >= 8);
    log_sum_exp[i] = exists(row) ? problem.log_sum_exp[first + row] : -INFINITY;
    d_log_sum_exp[i] = exists(row) && params.problem.d_log_sum_exp != nullptr
                           ? params.problem.d_log_sum_exp[first + row]
                           : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int row = row_of(i);
    float of_o[8], of_d_o[8], sum = 0.0f;
    unpack(o[i], of_o);
    unpack(d_o[i], of_d_o);
    if (exists(row) && left > 0 && left < 8) {
      load_eight(at(problem.o, row), left, of_o);
      load_eight(at(params.problem.d_o, row), left, of_d_o);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += of_o[j] * of_d_o[j];
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    }
    if (lane != i) continue;
    const bool sees = log_sum_exp[i] != -INFINITY;
    params.log_sum_exp[index * kRows + row] = sees ? log_sum_exp[i] * kLog2E : INFINITY;
    params.row_products[index * kRows + row] = sees ? sum - d_log_sum_exp[i] : 0.0f;
  }
}

}  // namespace tandem::cuda::attention
