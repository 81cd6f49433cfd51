// gla_sum_heads_kernel: gradients per head -> those of the head groups.
#include "cuda/gla/walk/sum_heads.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gla/common/finite_guard.cuh"
#include "cuda/gla/common/item.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocks = 8;  // per multiprocessor, at most

/// Sums heads into `to`, a warp per row of it, a lane `kColumns` columns at once: as many loads are
/// under way. Of several heads some are anyway.
template <class Element, int kColumns>
__global__ __launch_bounds__(kThreads, kBlocks) void gla_sum_heads_kernel(
    const __grid_constant__ SumHeadsParams params) {
  follow_stream();
  if (skips(params.guard)) return;
  const std::int64_t rows = params.B * params.T * params.HQ;
  const int share = params.H / params.HQ;
  int first = 0, last = static_cast<int>(params.T);
  if (params.cu_seqlens != nullptr) {
    last = params.N == 0 ? 0 : clamped_boundary(params.cu_seqlens, params.N, params.T);
    first = params.N == 0 ? 0 : clamped_boundary(params.cu_seqlens, 0, params.T);
  }
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const int head = static_cast<int>(row % params.HQ);
    const std::int64_t token = row / params.HQ;
    const int batch = static_cast<int>(token / params.T);
    const std::int64_t time = token % params.T;
    const bool inside = time >= first && time < last;
    const float* from = params.from + (token * params.H + head * share) * params.D;
    Element* to = token_row<Element>(params.to, batch, time, head);
    for (int first = threadIdx.x % 32; first < params.D; first += 32 * kColumns) {
      float sums[kColumns] = {};
      for (int i = 0; inside && i < share; ++i) {
        float of_head[kColumns];
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          const int column = first + 32 * k;
          of_head[k] = column < params.D ? from[std::int64_t{i} * params.D + column] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < kColumns; ++k) sums[k] += of_head[k];
      }
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const int column = first + 32 * k;
        if (column < params.D) to[column] = static_cast<Element>(sums[k]);
      }
    }
  }
}

}  // namespace

void launch_sum_heads(const SumHeadsParams& params, int multiprocessors, void* stream) {
  const std::int64_t most = std::int64_t{kBlocks} * std::max(multiprocessors, 1);
  const std::int64_t rows = params.B * params.T * params.HQ;
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(rows, kWarps), most));
  const auto launch = [&](auto kernel) {
    launch_kernel("gla_sum_heads", kernel, {.blocks = blocks, .threads = kThreads},
                  static_cast<cudaStream_t>(stream), params);
  };
  const bool bf16 = params.dtype == DType::kBFloat16;
  if (params.H == params.HQ) {
    launch(bf16 ? gla_sum_heads_kernel<__nv_bfloat16, 8> : gla_sum_heads_kernel<__half, 8>);
  } else {
    launch(bf16 ? gla_sum_heads_kernel<__nv_bfloat16, 1> : gla_sum_heads_kernel<__half, 1>);
  }
}

}  // namespace tandem::cuda::gla
