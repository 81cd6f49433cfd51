// What projection's unfused kernels share, forward and backward: lanes side by side share a head.
#pragma once

#include <bit>
#include <cstdint>

#include "bench/cuda/unfused_rows.cuh"

namespace tandem::bench::projection {

using namespace rows;

constexpr const char* kName = "unfused projection";  // in errors

/// Lanes that share a head: a power of two, the last of them perhaps idle.
inline int head_lanes(int head_width) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(head_width / kVector)));
}

/// What a thread has of its head. Threads outside take part in the sums, with zeros.
struct HeadPart {
  std::int64_t row;
  int head, lane, column;
  bool inside;

  __device__ HeadPart(std::int64_t M, int columns, int head_width, int lanes)
      : row(thread_row()), head(thread_in_row() / lanes), lane(thread_in_row() % lanes) {
    column = head * head_width + lane * kVector;
    inside = row < M && column < columns && lane * kVector < head_width;
  }
};

/// The sum of a b over a head, in each of its lanes.
inline __device__ float head_sum(const Values& a, const Values& b, int lanes) {
  float sum = 0.0f;
  for (int i = 0; i < kVector; ++i) sum += a.at[i] * b.at[i];
  for (int apart = lanes / 2; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, apart);
  }
  return sum;
}

}  // namespace tandem::bench::projection
