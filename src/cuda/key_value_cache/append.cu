// A token's keys and values to their place in a cache: a CTA per token. Bytes are few (a step's are
// B rows of a few kilobytes), so that what counts is that it is one launch.
#include <cstdint>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/launch.h"
#include "ops/key_value_cache.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

/// Copies a row by words of 16 bytes, or where it is not made of these by single ones.
__device__ void copy_row(const void* from, void* to, std::int64_t bytes) {
  const auto joint = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                     static_cast<std::uintptr_t>(bytes);
  if (joint % sizeof(uint4) == 0) {
    for (std::int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
    }
  } else {
    for (std::int64_t i = threadIdx.x; i < bytes; i += kThreads) {
      static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
    }
  }
}

__global__ __launch_bounds__(kThreads) void append_to_cache_kernel(
    const __grid_constant__ AppendProblem p) {
  follow_stream();
  const std::int64_t b = blockIdx.x / p.T, t = blockIdx.x % p.T;
  const std::int64_t place = p.steps ? p.lengths[b] : t;
  if (place < 0 || place >= p.capacity) return;
  const std::int64_t source = blockIdx.x * p.row_bytes;
  const std::int64_t target = (b * p.capacity + place) * p.row_bytes;
  copy_row(static_cast<const char*>(p.k) + source, static_cast<char*>(p.cache_k) + target,
           p.row_bytes);
  copy_row(static_cast<const char*>(p.v) + source, static_cast<char*>(p.cache_v) + target,
           p.row_bytes);
  __syncthreads();  // all threads have read the length
  if (t == p.T - 1 && threadIdx.x == 0) p.lengths[b] = static_cast<std::int32_t>(place + 1);
}

}  // namespace

void append_to_cache(const AppendProblem& problem, const Context& context) {
  constexpr const char* kName = "append_to_cache";
  const std::int64_t tokens = problem.B * problem.T;
  if (tokens == 0) return;
  const CallScope scope(kName, problem.device.index);
  launch_kernel(kName, append_to_cache_kernel,
                {.blocks = static_cast<unsigned>(tokens), .threads = kThreads},
                static_cast<cudaStream_t>(context.stream.handle), problem);
}

}  // namespace tandem::cuda
