// linear_scan_clear_kernel: sets all bits of the records between tiles, which means "not there
// yet".
#include <algorithm>

#include "cuda/linear_scan/forward_params.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::linear_scan {
namespace {

constexpr int kThreads = 256;

struct ClearParams {
  uint4* memory;
  std::int64_t count;
};

__global__ void linear_scan_clear_kernel(const ClearParams params) {
  follow_stream_before_own_kernel();
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < params.count;
       i += stride) {
    params.memory[i] = {~0u, ~0u, ~0u, ~0u};
  }
}

}  // namespace

void launch_clear(void* memory, std::int64_t bytes, int multiprocessors, void* stream) {
  const ClearParams params{static_cast<uint4*>(memory), bytes / 16};
  const std::int64_t most = std::int64_t{4} * std::max(multiprocessors, 1);
  const std::int64_t blocks = std::min(ceil_div(params.count, kThreads), most);
  if (blocks == 0) return;
  launch_kernel("linear_scan_clear", linear_scan_clear_kernel,
                {.blocks = static_cast<unsigned>(blocks), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::linear_scan
