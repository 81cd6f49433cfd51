// gla_schedule_kernel: sequences by length, longest first, so that the CTAs that take them one
// after another end together, or the segments of each; and zeros where outputs belong to no
// sequence.
//
// CTA 0 lists the segments in order, or sorts by counting: a sequence's bucket is the leading three
// bits of its number of chunks, so lengths within a bucket differ by less than a quarter. The order
// within a bucket is left to the atomics: it changes who computes an item, never its result. The
// other CTAs write zeros.
#include <cub/block/block_scan.cuh>

#include "cuda/gla/common/item.cuh"
#include "cuda/gla/walk/schedule.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kThreads = 512;
constexpr int kClearingBlocks = 64;
constexpr int kBuckets = 128;

__device__ int chunks_of(const ScheduleParams& params, std::int64_t n) {
  const int length = clamped_boundary(params.cu_seqlens, n + 1, params.T) -
                     clamped_boundary(params.cu_seqlens, n, params.T);
  return (max(length, 0) + kChunk - 1) / kChunk;
}

/// Bucket of sequence n, smaller for longer sequences.
__device__ int bucket_of(const ScheduleParams& params, std::int64_t n) {
  const auto chunks = static_cast<unsigned>(chunks_of(params, n));
  if (chunks == 0) return kBuckets - 1;
  const int exponent = 31 - __clz(chunks);
  const int mantissa = exponent >= 2 ? chunks >> (exponent - 2) & 3 : chunks << (2 - exponent) & 3;
  return kBuckets - 2 - (4 * exponent + mantissa);
}

__device__ void sort_sequences(const ScheduleParams& params) {
  __shared__ int next[kBuckets];  // sequences in a bucket, then where its next one goes
  if (threadIdx.x < kBuckets) next[threadIdx.x] = 0;
  __syncthreads();
  for (std::int64_t n = threadIdx.x; n < params.N; n += kThreads) {
    atomicAdd(&next[bucket_of(params, n)], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int first = 0;
    for (int& bucket : next) {
      const int count = bucket;
      bucket = first;
      first += count;
    }
    *params.ticket = 0;
  }
  __syncthreads();
  for (std::int64_t n = threadIdx.x; n < params.N; n += kThreads) {
    params.order[atomicAdd(&next[bucket_of(params, n)], 1)] = static_cast<std::int32_t>(n);
  }
}

/// Lists the segments of sequence after sequence. An empty sequence has one, which hands its state
/// on. Where boundaries decrease there may be more than fit: the last are left out.
__device__ void cut_sequences(const ScheduleParams& params) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage scan;
  int listed = 0;
  for (std::int64_t first = 0; first < params.N; first += kThreads) {
    const std::int64_t n = first + threadIdx.x;
    const int chunks = n < params.N ? chunks_of(params, n) : 0;
    const int wanted = max((chunks + params.piece_chunks - 1) / params.piece_chunks, 1);
    const int segments = n < params.N ? min(wanted, params.most_pieces) : 0;
    int at, total;
    Scan(scan).ExclusiveSum(segments, at, total);
    at += listed;
    for (int segment = 0; segment < min(segments, params.most_pieces - at); ++segment) {
      params.pieces[at + segment] = {static_cast<std::int32_t>(n), segment, segments};
    }
    listed = min(listed + total, params.most_pieces);
    __syncthreads();
  }
  for (int at = listed + threadIdx.x; at < params.most_pieces; at += kThreads) {
    params.pieces[at] = {};
  }
}

/// Writes zeros at tokens [begin, end) of every output.
__device__ void clear_tokens(const ScheduleParams& params, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = std::int64_t{blockIdx.x - 1} * kThreads + threadIdx.x;
  for (const auto& [tensor, columns] : params.outputs) {
    if (tensor.data == nullptr) continue;
    const std::int64_t row = std::int64_t{params.H} * columns;
    for (std::int64_t i = first; i < (end - begin) * row; i += kClearingBlocks * kThreads) {
      const int head = static_cast<int>(i % row / columns);
      token_row<std::uint16_t>(tensor, 0, begin + i / row, head)[i % columns] = 0;
    }
  }
}

__global__ __launch_bounds__(kThreads) void gla_schedule_kernel(
    const __grid_constant__ ScheduleParams params) {
  follow_stream_before_own_kernel();
  if (blockIdx.x == 0 && params.pieces != nullptr) {
    cut_sequences(params);
  } else if (blockIdx.x == 0) {
    sort_sequences(params);
  } else if (params.N == 0) {
    clear_tokens(params, 0, params.T);
  } else {
    clear_tokens(params, 0, clamped_boundary(params.cu_seqlens, 0, params.T));
    clear_tokens(params, clamped_boundary(params.cu_seqlens, params.N, params.T), params.T);
  }
}

}  // namespace

void launch_schedule(const ScheduleParams& params, void* stream) {
  launch_kernel("gla_schedule", gla_schedule_kernel,
                {.blocks = 1 + kClearingBlocks, .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
