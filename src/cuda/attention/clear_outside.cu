// attention_clear_outside_kernel: a warp per row of one head of a token in front of the first
// sequence or behind the last. Where there is none it ends at once.
#include "cuda/attention/clear_outside.h"

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::attention {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 64;

__global__ void attention_clear_outside_kernel(const ClearOutsideParams params) {
  follow_stream();
  const auto boundary = [&](std::int64_t n) {
    return min(max(std::int64_t{params.cu_seqlens[n]}, std::int64_t{0}), params.T);
  };
  const std::int64_t begin = boundary(0), end = max(boundary(params.N), begin);
  const std::int64_t rows = (begin + params.T - end) * params.heads;
  constexpr int kWarps = kThreads / 32;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    std::int64_t token = row / params.heads;
    if (token >= begin) token += end - begin;
    auto* to = static_cast<std::uint16_t*>(params.tensor.data) + token * params.tensor.time_stride +
               row % params.heads * params.tensor.head_stride;
    for (int i = threadIdx.x % 32; i < params.dim; i += 32) to[i] = 0;
  }
}

}  // namespace

void launch_clear_outside(const char* name, const ClearOutsideParams& params, void* stream) {
  launch_kernel(name, attention_clear_outside_kernel, {.blocks = kBlocks, .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::attention
