// What unfused kernels over rows of matrices share. Each element-wise thread takes eight elements
// of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/strided_tensor.h"
#include "cuda/runtime/cuda_check.h"
#include "tandem/error.h"
#include "tandem/tensor.h"

namespace tandem::bench::rows {

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

/// Calls body(Element{}, Out{}): the 16-bit dtype of a call, and that of tensors that may be fp32.
template <class Body>
void with_types(DType dtype, DType out_dtype, const Body& body) {
  const auto with = [&](auto element) {
    out_dtype == DType::kFloat32 ? body(element, float{}) : body(element, element);
  };
  dtype == DType::kBFloat16 ? with(__nv_bfloat16{}) : with(__half{});
}

/// Refuses what has no whole vectors of 16 bytes; `name` is the baseline's.
inline void check_matrix(const char* name, const MatrixTensor& matrix, DType dtype, int columns) {
  if (matrix.data == nullptr) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 &&
                       matrix.row_stride * size_of(dtype) % 16 == 0;
  if (aligned && matrix.row_stride >= columns && columns % kVector == 0) return;
  throw Unsupported("[" + std::string(name) +
                    "] columns and d must be multiples of 8, and rows begin apart from each other "
                    "at multiples of 16 bytes");
}

/// Fills a matrix with zeros.
inline void clear_matrix(const char* name, const MatrixTensor& matrix, DType dtype,
                         std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  const std::size_t size = size_of(dtype);
  cuda::cuda_check(
      cudaMemset2DAsync(matrix.data, matrix.row_stride * size, 0, columns * size, rows, stream),
      name);
}

// Sums over rows: of slices of them, then of the slices.

constexpr int kSumLanes = 16, kSumRows = kThreads / kSumLanes;
constexpr int kSumColumns = kSumLanes * kVector;

inline int sum_slices(std::int64_t M) {
  return static_cast<int>(std::clamp<std::int64_t>(M / 256, 1, 64));
}

/// Sums of a slice's rows of terms(row, column): a block per kSumColumns columns and slice.
template <typename Terms>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(Terms terms, std::int64_t M, int columns, float* sums) {
  alignas(16) __shared__ float shared[kSumRows][kSumColumns];
  const int lane = threadIdx.x % kSumLanes, first = threadIdx.x / kSumLanes;
  const int column = blockIdx.x * kSumColumns + lane * kVector;
  const std::int64_t slices = gridDim.y, slice = blockIdx.y;
  const std::int64_t begin = M * slice / slices, end = M * (slice + 1) / slices;
  Values sum = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + first; row < end; row += kSumRows) {
      const Values values = terms(row, column);
      for (int i = 0; i < kVector; ++i) sum.at[i] += values.at[i];
    }
  }
  sum.store(&shared[first][lane * kVector]);
  __syncthreads();
  const int mine = threadIdx.x, to = blockIdx.x * kSumColumns + mine;
  if (mine >= kSumColumns || to >= columns) return;
  float total = 0.0f;
  for (int row = 0; row < kSumRows; ++row) total += shared[row][mine];
  sums[slice * columns + to] = total;
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    sum_slices_kernel(const float* sums, int slices, int columns, Out* result, bool accumulate) {
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= columns) return;
  float total = accumulate ? static_cast<float>(result[column]) : 0.0f;
  for (int slice = 0; slice < slices; ++slice)
    total += sums[std::int64_t{slice} * columns + column];
  result[column] = Out(total);
}

/// result = the sum over rows of terms(row, column); `sums` holds sum_slices(M) rows.
template <typename Terms, typename Out>
void sum_columns(const Terms& terms, std::int64_t M, int columns, float* sums, Out* result,
                 bool accumulate, cudaStream_t stream) {
  const int slices = sum_slices(M);
  const dim3 grid((columns - 1) / kSumColumns + 1, slices);
  column_sums_kernel<<<grid, kThreads, 0, stream>>>(terms, M, columns, sums);
  sum_slices_kernel<Out><<<(columns - 1) / kThreads + 1, kThreads, 0, stream>>>(
      sums, slices, columns, result, accumulate);
}

}  // namespace tandem::bench::rows
