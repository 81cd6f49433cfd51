// gla_segment_entries_kernel: what segments add to states -> the states where segments begin.
//
//   S = initial_state;   entry_i = S,  S = exp(total_i) S + state_i,   i = 0, 1, ...
//
// and for the gradients the same from the last segment to the first. One thread per element of a
// head's state and direction, always in this order.
#include "cuda/gla/reverse/params.h"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr unsigned kThreads = 256;

__global__ void gla_segment_entries_kernel(const __grid_constant__ SegmentEntriesParams params) {
  follow_stream();
  const std::int64_t element = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t sequence_head = element / params.state_size;
  const std::int64_t offset = element % params.state_size;
  if (sequence_head >= params.sequence_heads) return;
  const bool reverse = blockIdx.y == 1;
  const std::int64_t first = sequence_head * params.segments;
  float* const states =
      (reverse ? params.gradients : params.states) + first * params.state_size + offset;
  const float* const begin = reverse ? params.final_gradient : params.initial_state;
  float state = begin == nullptr ? 0.0f : begin[element];
#pragma unroll 4
  for (int i = 0; i < params.segments; ++i) {
    const int segment = reverse ? params.segments - 1 - i : i;
    float& entry = states[segment * params.state_size];
    const float added = entry;
    entry = state;
    state = exp2f(params.log_decay[first + segment] * kLog2E) * state + added;
  }
}

}  // namespace

void launch_segment_entries(const SegmentEntriesParams& params, void* stream) {
  const std::int64_t elements = params.sequence_heads * params.state_size;
  launch_kernel("gla_segment_entries", gla_segment_entries_kernel,
                {.blocks = static_cast<unsigned>(ceil_div(elements, kThreads)),
                 .blocks_y = 2,
                 .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
