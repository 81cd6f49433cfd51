// The kernels of projection's backward that are not matrix products: dz from d_out, sums over rows,
// sums of slices.
#pragma once

#include "cuda/parts/fragment.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/projection/backward_params.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::projection {

constexpr int kWarps = 8;

/// Eight neighbouring elements of a row, or as many as there are and zeros.
template <class Stored>
__device__ void load_eight(const void* row, int column, int count, float (&values)[8]) {
  const Stored* from = static_cast<const Stored*>(row) + column;
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    uint4 words[sizeof(Stored) / 2];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Stored) / 2); ++i) {
      words[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    const Stored* stored = reinterpret_cast<const Stored*>(words);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(stored[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = i < count ? static_cast<float>(from[i]) : 0.0f;
  }
}

/// The same from a matrix of fp32 or Element.
template <class Element>
__device__ void load_eight(const MatrixTensor& matrix, bool fp32, std::int64_t row, int column,
                           int count, float (&values)[8]) {
  const char* base = static_cast<const char*>(matrix.data);
  if (fp32) {
    load_eight<float>(base + row * matrix.row_stride * 4, column, count, values);
  } else {
    load_eight<Element>(base + row * matrix.row_stride * 2, column, count, values);
  }
}

/// Stores what of eight values lies before the row's end; rows of dz begin at multiples of 16
/// bytes.
template <class Element>
__device__ void store_eight(const MatrixTensor& dz, std::int64_t row, int column, int count,
                            const float (&values)[8]) {
  Element* to = static_cast<Element*>(dz.data) + row * dz.row_stride + column;
  if (count >= 8) {
    *reinterpret_cast<uint4*>(to) = {
        pack_pair<Element>(values[0], values[1]), pack_pair<Element>(values[2], values[3]),
        pack_pair<Element>(values[4], values[5]), pack_pair<Element>(values[6], values[7])};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) to[i] = static_cast<Element>(values[i]);
    }
  }
}

/// dz of a row, of segments that take each value alone. A warp.
template <class Element>
__device__ void scale_row(const SegmentGradient& segment, std::int64_t row) {
  for (int column = 8 * (threadIdx.x % 32); column < segment.columns; column += 8 * 32) {
    const int count = segment.columns - column;
    float d[8];
    load_eight<Element>(segment.d_out, segment.fp32, row, column, count, d);
    if (segment.kept == ProjectionKept::kSlope) {
      float slope[8];
      load_eight<Element>(segment.slope, segment.fp32, row, column, count, slope);
#pragma unroll
      for (int i = 0; i < 8; ++i) d[i] *= slope[i];
    }
    store_eight<Element>(segment.dz, row, column, count, d);
  }
}

/// dz of a row of normalised heads: inverse_norm (d_out - out <d_out, out>). A warp: neighbouring
/// lanes take eight columns each of one head, as many heads at once as it has lanes for.
template <class Element>
__device__ void project_row(const SegmentGradient& segment, std::int64_t row) {
  const int pieces = segment.head_width / 8;
  int lanes = 1;  // per head
  while (lanes < pieces) lanes *= 2;
  const int lane = threadIdx.x % 32;
  const int heads = segment.columns / segment.head_width;
  for (int first = 0; first < heads; first += 32 / lanes) {
    const int head = first + lane / lanes;
    const int piece = lane % lanes;
    const bool works = head < heads && piece < pieces;
    const int column = head * segment.head_width + 8 * piece;
    float d[8] = {}, out[8] = {}, dot = 0.0f;
    if (works) {
      load_eight<Element>(segment.d_out, segment.fp32, row, column, 8, d);
      load_eight<Element>(segment.out, segment.fp32, row, column, 8, out);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) dot = fmaf(d[i], out[i], dot);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      dot += __shfl_xor_sync(0xFFFFFFFFu, dot, distance);
    }
    if (!works) continue;
    const float inverse = static_cast<const float*>(
        segment.inverse_norm.data)[row * segment.inverse_norm.row_stride + head];
#pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = inverse * (d[i] - out[i] * dot);
    store_eight<Element>(segment.dz, row, column, 8, d);
  }
}

/// A warp per row, all segments.
template <class Element>
__global__ __launch_bounds__(32 * kWarps) void projection_gradient_kernel(
    const __grid_constant__ GradientParams params) {
  follow_stream();
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < params.M;
       row += stride) {
    for (const SegmentGradient& segment : params.segments) {
      if (segment.dz.data == nullptr) continue;
      if (segment.kept == ProjectionKept::kNormalized) {
        project_row<Element>(segment, row);
      } else {
        scale_row<Element>(segment, row);
      }
    }
  }
}

/// A CTA per 256 columns and slice of rows; its warps take every eighth row.
template <class Element>
__global__ __launch_bounds__(32 * kWarps) void projection_column_sum_kernel(
    const __grid_constant__ ColumnSumParams params) {
  follow_stream();
  __shared__ float sums[kWarps][256];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * 256 + 8 * lane;
  const std::int64_t begin = params.M * blockIdx.y / params.slices;
  const std::int64_t end = params.M * (blockIdx.y + 1) / params.slices;
  float sum[8] = {};
#pragma unroll 4
  for (std::int64_t row = begin + warp; row < end; row += kWarps) {
    float values[8];
    load_eight<Element>(params.matrix, params.fp32, row, column, params.columns - column, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += values[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[warp][8 * lane + i] = sum[i];
  __syncthreads();
  const int mine = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  if (mine >= params.columns) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i][threadIdx.x];
  params.partial_sums[std::int64_t{blockIdx.y} * params.columns + mine] = total;
}

/// A thread per element.
template <class Element>
__global__ __launch_bounds__(32 * kWarps) void projection_sum_slices_kernel(
    const __grid_constant__ SumSlicesParams params) {
  follow_stream();
  const std::int64_t count = params.rows * params.columns;
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int64_t at = i / params.columns * params.result.row_stride + i % params.columns;
  float* wide = static_cast<float*>(params.result.data) + at;
  Element* narrow = static_cast<Element*>(params.result.data) + at;
  float sum = 0.0f;
  if (params.accumulate) sum = params.fp32 ? *wide : static_cast<float>(*narrow);
  for (int slice = 0; slice < params.slices; ++slice) sum += params.partial_sums[slice * count + i];
  if (params.fp32) {
    *wide = sum;
  } else {
    *narrow = static_cast<Element>(sum);
  }
}

template <class Element>
void launch_gradient(const GradientParams& params, void* stream) {
  constexpr std::int64_t kMostBlocks = 132 * 8;
  const std::int64_t blocks = ceil_div(params.M, kWarps);
  if (blocks == 0) return;
  launch_kernel("projection_backward", projection_gradient_kernel<Element>,
                {.blocks = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks),
                 .threads = 32 * kWarps},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element>
void launch_column_sums(const ColumnSumParams& params, void* stream) {
  launch_kernel("projection_backward", projection_column_sum_kernel<Element>,
                {.blocks = static_cast<unsigned>(ceil_div(params.columns, 256)),
                 .blocks_y = static_cast<unsigned>(params.slices),
                 .threads = 32 * kWarps},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element>
void launch_sum_slices(const SumSlicesParams& params, void* stream) {
  const std::int64_t blocks = ceil_div(params.rows * params.columns, 32 * kWarps);
  if (blocks == 0) return;
  launch_kernel("projection_backward", projection_sum_slices_kernel<Element>,
                {.blocks = static_cast<unsigned>(blocks), .threads = 32 * kWarps},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::projection
