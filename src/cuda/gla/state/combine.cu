// gla_state_combine_kernel: the states of a sequence's segments -> the state of all of it.
//
//   S = 0;   S = exp(total_i) S + state_i,  i = 0, 1, ...
//
// One thread per element of a (sequence, head)'s state, in the order of the segments.
#include "cuda/gla/state/params.h"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr unsigned kThreads = 256;

__global__ void gla_state_combine_kernel(const __grid_constant__ StateCombineParams params) {
  follow_stream();
  const std::int64_t element = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t sequence_head = element / params.state_size;
  const std::int64_t offset = element % params.state_size;
  if (sequence_head >= params.sequence_heads) return;
  const std::int64_t first_segment = sequence_head * params.segments;
  const float* states = params.segment_states + first_segment * params.state_size + offset;
  const float* log_decay = params.segment_log_decay + first_segment;

  float state = 0.0f;
  float total = 0.0f;
#pragma unroll 4
  for (int i = 0; i < params.segments; ++i) {
    state = exp2f(log_decay[i] * kLog2E) * state + states[i * params.state_size];
    total += log_decay[i];
  }
  params.state[element] = state;
  if (offset == 0) params.total_log_decay[sequence_head] = total;
}

}  // namespace

void launch_state_combine(const StateCombineParams& params, void* stream) {
  const std::int64_t elements = params.sequence_heads * params.state_size;
  launch_kernel(
      "gla_state_combine", gla_state_combine_kernel,
      {.blocks = static_cast<unsigned>(ceil_div(elements, kThreads)), .threads = kThreads},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
