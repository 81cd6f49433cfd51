// What projection's unfused kernels share, forward and backward. Each element-wise thread takes
// eight elements of a row, and lanes side by side share a head.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/error.h"
#include "tandem/tensor.h"

namespace tandem::bench::projection {

constexpr const char* kName = "unfused projection";  // in errors
constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of a thread
constexpr unsigned kWholeWarp = ~0u;

template <typename T>
struct alignas(16) Part {
  T values[kVector];
};

/// The eight values of a thread.
struct Values {
  float at[kVector];

  template <typename T>
  __device__ void load(const T* from) {
    const Part<T> part = *reinterpret_cast<const Part<T>*>(from);
    for (int i = 0; i < kVector; ++i) at[i] = static_cast<float>(part.values[i]);
  }
  template <typename T>
  __device__ void store(T* to) const {
    Part<T> part;
    for (int i = 0; i < kVector; ++i) part.values[i] = T(at[i]);
    *reinterpret_cast<Part<T>*>(to) = part;
  }
};

template <typename T>
__device__ T* address(const MatrixTensor& matrix, std::int64_t row, int column) {
  return static_cast<T*>(matrix.data) + row * matrix.row_stride + column;
}

/// The threads of a matrix: a row's along x, `width` of them.
struct Threads {
  int width;
  dim3 block, grid;

  Threads(std::int64_t rows, int row_threads) : width(row_threads) {
    const auto along = std::min<unsigned>(std::bit_ceil(static_cast<unsigned>(width)), kThreads);
    block = dim3(along, kThreads / along);
    grid = dim3(static_cast<unsigned>((rows + block.y - 1) / block.y), (width - 1) / along + 1);
  }
};

inline __device__ std::int64_t thread_row() {
  return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
}
inline __device__ int thread_in_row() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
}

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

/// Calls body(Element{}, Out{}): the 16-bit dtype of a call, and that of a segment's tensors.
template <class Body>
void with_types(DType dtype, DType out_dtype, const Body& body) {
  const auto with = [&](auto element) {
    out_dtype == DType::kFloat32 ? body(element, float{}) : body(element, element);
  };
  dtype == DType::kBFloat16 ? with(__nv_bfloat16{}) : with(__half{});
}

/// Refuses what has no whole vectors of 16 bytes.
inline void check_matrix(const MatrixTensor& matrix, DType dtype, int columns) {
  if (matrix.data == nullptr) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
                       matrix.row_stride * size_of(dtype) % 16 == 0;
  if (aligned && matrix.row_stride >= columns && columns % kVector == 0) return;
  throw Unsupported(
      "[unfused projection] columns and d must be multiples of 8, and rows begin apart from each "
      "other at multiples of 16 bytes");
}

}  // namespace tandem::bench::projection
