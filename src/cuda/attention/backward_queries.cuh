// attention_backward_queries_kernel: dq from the sums that attention_backward_kernel leaves in the
// order of its accumulators. A CTA per tile of queries and head.
#pragma once

#include "cuda/attention/backward_config.h"
#include "cuda/attention/backward_item.cuh"
#include "cuda/attention/backward_products.cuh"
#include "cuda/attention/backward_tile.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

template <class Config>
__global__ __launch_bounds__(Config::kWorkers) void attention_backward_queries_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  using Element = typename Config::Element;
  constexpr int kRows = Config::kQueries;
  __shared__ __align__(1024) char panels[Config::kKeyPanels * panel_bytes(kRows)];
  follow_stream();
  const AttentionForwardProblem& problem = params.problem.forward;
  const std::int64_t head = blockIdx.x % problem.H, tile = blockIdx.x / problem.H;
  int n, block;
  find_block(problem.cu_seqlens_q, static_cast<int>(problem.N), problem.TQ, kRows,
             static_cast<int>(tile), n, block);
  SequenceSpan span;
  span.set(problem, n);
  const int rows = min(span.queries - block * kRows, kRows);
  if (rows <= 0) return;
  const SeenBlocks seen(span, block, kRows);

  const int warpgroup = threadIdx.x / 128;
  BackwardSums<Config> sums{};
  if (seen.first <= seen.last) {
    const auto* from =
        reinterpret_cast<const float4*>(params.dq_sums + (head * params.query_tiles + tile) *
                                                             (Config::kSumBytes / 4)) +
        warpgroup * (Config::kSums / 4) * 128 + threadIdx.x % 128;
    sums.for_fours([&](int i, float* four) { *reinterpret_cast<float4*>(four) = from[i * 128]; });
  }
  put_tile<Element, kRows>(sums.main, problem.scale, panels,
                           Config::kSplitQueries ? 64 * warpgroup : 0,
                           Config::main_column(warpgroup));
  if constexpr (Config::kSumRest > 0) {
    put_tile<Element, kRows>(sums.rest, problem.scale, panels, 0, Config::rest_column(warpgroup));
  }
  __syncthreads();
  const StridedTensor& dq = params.problem.dq;
  const std::int64_t time = span.query_begin + std::int64_t{block} * kRows;
  copy_rows<Element, kRows, Config::kKeyDim, Config::kWorkers>(
      panels,
      static_cast<Element*>(dq.data) + span.batch * dq.batch_stride + time * dq.time_stride +
          head * dq.head_stride,
      dq.time_stride, rows, problem.K, threadIdx.x);
}

}  // namespace tandem::cuda::attention
