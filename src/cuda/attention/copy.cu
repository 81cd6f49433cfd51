// attention_copy_kernel: a row of one head after another, its elements by neighbouring threads.
#include "cuda/attention/copy.h"

#include <algorithm>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::attention {
namespace {

constexpr int kColumns = 32;
constexpr int kRows = 8;

__global__ void attention_copy_kernel(const CopyParams params) {
  follow_stream();
  const std::int64_t rows = params.B * params.T * params.heads;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kColumns; row < rows;
       row += std::int64_t{gridDim.x} * kRows) {
    const std::int64_t head = row % params.heads, token = row / params.heads;
    const auto begin = [&](const StridedTensor& x) {
      return static_cast<std::uint16_t*>(x.data) + token / params.T * x.batch_stride +
             token % params.T * x.time_stride + head * x.head_stride;
    };
    const std::uint16_t* from = begin(params.from);
    std::uint16_t* to = begin(params.to);
#pragma unroll 4
    for (int i = threadIdx.x % kColumns; i < params.dim; i += kColumns) to[i] = from[i];
  }
}

}  // namespace

void launch_copy(const char* name, const CopyParams& params, void* stream) {
  const std::int64_t rows = params.B * params.T * params.heads;
  if (rows == 0) return;
  constexpr std::int64_t kMostBlocks = 1 << 16;
  const std::int64_t blocks = std::min(ceil_div(rows, kRows), kMostBlocks);
  launch_kernel(name, attention_copy_kernel,
                {.blocks = static_cast<unsigned>(blocks), .threads = kColumns * kRows},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::attention
