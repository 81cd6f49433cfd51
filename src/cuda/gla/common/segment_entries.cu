// gla_segment_entries_kernel: what the segments before add to states -> the states where segments
// begin.
//
//   entry_0 = initial_state,   entry_i = added_{i-1} + exp(total_{i-1}) entry_{i-1}
//
// and for the gradients the same from the last segment to the first. What is forgotten costs
// nothing: then entry_i is what lies there. One thread per four elements of a head's state and
// direction, always in this order.
#include "cuda/gla/common/segment_entries.h"
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
  const std::int64_t begin_offset = sequence_head * params.state_size + offset;
  float* const states = (reverse ? params.gradients : params.states) + offset;
  const float* const begin = reverse ? params.final_gradient : params.initial_state;
  const auto index = [&](int i) {  // of the i-th segment, as the direction goes
    return std::int64_t{sequence_head} * params.segments + (reverse ? params.segments - 1 - i : i);
  };
  const auto factor_of = [&](int i) {
    const bool handed_on = i >= 0 && i + 1 < params.segments;
    return handed_on ? exp2f(params.log_decay[index(i)] * kLog2E) : 0.0f;
  };
  float4 entry = {};  // of the segment before, where its factor is not 0
  for (int done = 0; done < params.segments; done += kTogether) {
    float4 added[kTogether];
    float factor[kTogether + 1];  // of the segment before each
#pragma unroll
    for (int i = 0; i <= kTogether; ++i) factor[i] = factor_of(done + i - 1);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      added[i] = {};
      const float* from = states + index(done + i) * params.state_size;
      if (done + i == 0) from = begin == nullptr ? nullptr : begin + begin_offset;
      const bool read = done + i == 0 || factor[i] != 0.0f || factor[i + 1] != 0.0f;
      if (read && from != nullptr) added[i] = *reinterpret_cast<const float4*>(from);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float kept = factor[i];
      const float4& own = added[i];
      entry = {kept * entry.x + own.x, kept * entry.y + own.y, kept * entry.z + own.z,
               kept * entry.w + own.w};
      if (done + i > 0 && kept == 0.0f) entry = own;
      if (done + i == 0 || kept != 0.0f) {
        *reinterpret_cast<float4*>(states + index(done + i) * params.state_size) = entry;
      }
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
