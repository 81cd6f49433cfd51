// attention_backward_queries_kernel: dq from the sums that attention_backward_kernel leaves in the
// order of its accumulators. A CTA per tile of queries and head.
#pragma once

#include "cuda/attention/backward_config.h"
#include "cuda/attention/backward_item.cuh"
#include "cuda/attention/backward_products.cuh"
#include "cuda/attention/store_rows.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

template <class Config>
__global__ __launch_bounds__(Config::kWorkers) void attention_backward_queries_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  using Element = typename Config::Element;
  constexpr int kRows = Config::kQueries;
  follow_stream();
  const AttentionForwardProblem& problem = params.problem.forward;
  const std::int64_t head = blockIdx.x % problem.H, tile = blockIdx.x / problem.H;
  int n, block;
  find_block(problem.cu_seqlens_q, static_cast<int>(problem.N), problem.TQ, kRows,
             static_cast<int>(tile), n, block);
  SequenceSpan span;
  span.set(problem, n);
  const int rows = min(span.queries - block * kRows, kRows);
  if (block < 0 || rows <= 0) return;
  const SeenBlocks seen(span, Config::kTile, block);

  const int warpgroup = threadIdx.x / 128;
  Accumulator<typename Config::SumShare> sums{};
  if (seen.first <= seen.last) {
    const auto* from = reinterpret_cast<const float4*>(
        params.dq_sums + (head * params.query_tiles + tile) * (Config::kSumBytes / 4));
    sums.for_fours([&](int i, float* four) {
      *reinterpret_cast<float4*>(four) = from[Config::place_of_four(i, warpgroup)];
    });
  }
  const StridedTensor& dq = params.problem.dq;
  const int first = Config::kSplitQueries ? 64 * warpgroup : 0;
  const std::int64_t time = span.query_begin + std::int64_t{block} * kRows + first;
  auto* const to = static_cast<Element*>(dq.data) + span.batch * dq.batch_stride +
                   time * dq.time_stride + head * dq.head_stride;
  const float scale[2] = {problem.scale, problem.scale};
  sums.for_parts(warpgroup, [&](const auto& part, int column) {
    store_rows<Element>(part, scale, to + column, dq.time_stride, rows - first, problem.K - column);
  });
}

}  // namespace tandem::cuda::attention
