// gla_clear_outside_kernel: zeros at tokens before the first boundary of cu_seqlens and behind the
// last one. Mostly there are none.
#include "cuda/gla/common/item.cuh"
#include "cuda/gla/decay/gradient.cuh"
#include "cuda/gla/reverse/outside.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gla {
namespace {

constexpr unsigned kBlocks = 64;
constexpr unsigned kThreads = 256;

__device__ void clear_rows(const StridedTensor& tensor, int heads, int columns, int time) {
  for (int i = threadIdx.x; i < heads * columns; i += kThreads) {
    token_row<std::uint16_t>(tensor, 0, time, i / columns)[i % columns] = 0;
  }
}

__global__ __launch_bounds__(kThreads) void gla_clear_outside_kernel(
    const __grid_constant__ GlaBackwardProblem problem) {
  follow_stream();
  const GlaForwardProblem& f = problem.forward;
  const int first = clamped_boundary(f.cu_seqlens, 0, f.T);
  const int last = clamped_boundary(f.cu_seqlens, f.N, f.T);
  const int count = first + static_cast<int>(f.T) - last;
  for (int i = blockIdx.x; i < count; i += kBlocks) {
    const int time = i < first ? i : last + i - first;
    clear_rows(problem.dq, f.HQ, f.K, time);
    clear_rows(problem.dk, f.HQ, f.K, time);
    clear_rows(problem.dv, f.H, f.V, time);
    if (problem.d_log_decay.data == nullptr || !problem.d_log_decay.per_token) continue;
    for (int head = threadIdx.x; head < f.H; head += kThreads) {
      *gradient_at(problem.d_log_decay, 0, time, head) = 0.0f;
    }
  }
}

}  // namespace

void launch_clear_outside(const GlaBackwardProblem& problem, void* stream) {
  launch_kernel("gla_clear_outside", gla_clear_outside_kernel,
                {.blocks = kBlocks, .threads = kThreads}, static_cast<cudaStream_t>(stream),
                problem);
}

}  // namespace tandem::cuda::gla
