#include "cuda/runtime/clear.h"

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 512;

struct ClearParams {
  std::uint32_t* words;
  std::int64_t count;
};

__global__ __launch_bounds__(kThreads) void clear_kernel(
    const __grid_constant__ ClearParams params) {
  follow_stream_before_own_kernel();
  for (std::int64_t i = threadIdx.x; i < params.count; i += kThreads) params.words[i] = 0;
}

}  // namespace

void launch_clear(const char* name, std::uint32_t* words, std::int64_t count, void* stream) {
  launch_kernel(name, clear_kernel, {.blocks = 1, .threads = kThreads},
                static_cast<cudaStream_t>(stream), ClearParams{words, count});
}

}  // namespace tandem::cuda
