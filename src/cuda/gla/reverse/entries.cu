// gla_segment_entries_kernel: what segments add to states -> the states where segments begin.
//
//   S = initial_state;   entry_i = S,  S = exp(total_i) S + state_i,   i = 0, 1, ...
//
// and for the gradients the same from the last segment to the first. One thread per four elements
// of a head's state and direction, always in this order.
#include "cuda/gla/reverse/params.h"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr unsigned kThreads = 128;
constexpr int kElements = 4;  // of a thread
constexpr int kTogether = 8;  // segments read before the first one is written

__global__ __launch_bounds__(kThreads) void gla_segment_entries_kernel(
    const __grid_constant__ SegmentEntriesParams params) {
  follow_stream();
  const unsigned sequence_head = blockIdx.x / params.slices;
  const unsigned slice = blockIdx.x - sequence_head * params.slices;
  const std::int64_t offset = std::int64_t{kElements} * (slice * kThreads + threadIdx.x);
  if (offset >= params.state_size) return;
  const bool reverse = blockIdx.y == 1;
  const std::int64_t first = std::int64_t{sequence_head} * params.segments;
  float* const states = (reverse ? params.gradients : params.states) + offset;
  const float* const begin = reverse ? params.final_gradient : params.initial_state;
  float4 state = {};
  if (begin != nullptr) {
    state = *reinterpret_cast<const float4*>(begin + sequence_head * params.state_size + offset);
  }
  for (int done = 0; done < params.segments; done += kTogether) {
    const int count = min(params.segments - done, kTogether);
    float4 added[kTogether];
    float log_decay[kTogether];
    const auto segment = [&](int i) {
      return first + (reverse ? params.segments - 1 - (done + i) : done + i);
    };
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i >= count) continue;
      added[i] = *reinterpret_cast<const float4*>(states + segment(i) * params.state_size);
      log_decay[i] = params.log_decay[segment(i)];
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i >= count) continue;
      *reinterpret_cast<float4*>(states + segment(i) * params.state_size) = state;
      const float kept = exp2f(log_decay[i] * kLog2E);
      state.x = kept * state.x + added[i].x;
      state.y = kept * state.y + added[i].y;
      state.z = kept * state.z + added[i].z;
      state.w = kept * state.w + added[i].w;
    }
  }
}

}  // namespace

void launch_segment_entries(SegmentEntriesParams params, void* stream) {
  params.slices = static_cast<unsigned>(ceil_div(params.state_size, kElements * kThreads));
  launch_kernel("gla_segment_entries", gla_segment_entries_kernel,
                {.blocks = static_cast<unsigned>(params.sequence_heads * params.slices),
                 .blocks_y = 2,
                 .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
