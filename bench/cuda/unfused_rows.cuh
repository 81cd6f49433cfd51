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
    take(*reinterpret_cast<const Part<T>*>(from));
  }
  template <typename T>
  __device__ void take(const Part<T>& part) {
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

/// A thread's part of a vector [columns] in Element or fp32; `absent` where there is none.
template <typename Element, class Vector>
__device__ Values weights(const Vector& vector, int column, float absent) {
  Values values;
  if (vector.data == nullptr) {
    for (float& value : values.at) value = absent;
  } else if (vector.dtype == DType::kFloat32) {
    values.load(static_cast<const float*>(vector.data) + column);
  } else {
    values.load(static_cast<const Element*>(vector.data) + column);
  }
  return values;
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

// Sums over a CTA whose threads hold a row.

constexpr int kWarp = 32;
constexpr int kMostThreads = 512;

/// The sums over a CTA, in each of its threads.
template <int kCount>
__device__ void block_sums(float (&values)[kCount]) {
  __shared__ float sums[kCount][kMostThreads / kWarp];
  for (float& value : values) {
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      value += __shfl_xor_sync(kWholeWarp, value, apart);
    }
  }
  __syncthreads();  // the sums before these are read
  if (threadIdx.x % kWarp == 0) {
    for (int i = 0; i < kCount; ++i) sums[i][threadIdx.x / kWarp] = values[i];
  }
  __syncthreads();
  for (int i = 0; i < kCount; ++i) {
    values[i] = 0.0f;
    for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) values[i] += sums[i][warp];
  }
}

inline __device__ float block_sum(float value) {
  float values[1] = {value};
  block_sums(values);
  return values[0];
}

/// The first column of a thread's vector.
inline __device__ int column_of(int vector) {
  return static_cast<int>(vector * blockDim.x + threadIdx.x) * kVector;
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

/// The same where there are many slices: kWays threads share a column, which is kWarp along x.
template <int kWays, typename Out>
__global__ void __launch_bounds__(kWarp* kWays)
    sum_many_slices_kernel(const float* sums, int slices, int columns, Out* result,
                           bool accumulate) {
  __shared__ float shared[kWays][kWarp];
  const int column = static_cast<int>(blockIdx.x * kWarp + threadIdx.x);
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (int slice = static_cast<int>(threadIdx.y); slice < slices; slice += kWays) {
      sum += sums[std::int64_t{slice} * columns + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = accumulate ? static_cast<float>(result[column]) : 0.0f;
  for (int way = 0; way < kWays; ++way) total += shared[way][threadIdx.x];
  result[column] = Out(total);
}

template <int kWays, typename Out>
void sum_many_slices(const float* sums, int slices, int columns, Out* result, bool accumulate,
                     cudaStream_t stream) {
  const dim3 block(kWarp, kWays);
  sum_many_slices_kernel<kWays, Out>
      <<<(columns - 1) / kWarp + 1, block, 0, stream>>>(sums, slices, columns, result, accumulate);
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
