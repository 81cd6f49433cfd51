// The kernels of projection's backward that are not matrix products: dz from d_out, and sums over
// rows.
#pragma once

#include "cuda/parts/eight.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/projection/backward_params.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::projection {

constexpr int kWarps = 8;

/// Loads eight neighbouring elements of a matrix of fp32 or Element, or `count` of them and zeros.
template <class Element>
__device__ void load_eight(const MatrixTensor& matrix, bool fp32, std::int64_t row, int column,
                           int count, float (&values)[8]) {
  const char* base =
      static_cast<const char*>(matrix.data) + row * matrix.row_stride * (fp32 ? 4 : 2);
  cuda::load_eight<Element>(base, fp32, column, count, values);
}

/// Stores what of eight values of dz lies before the row's end.
template <class Element>
__device__ void store_eight(const MatrixTensor& dz, std::int64_t row, int column, int count,
                            const float (&values)[8]) {
  cuda::store_eight(static_cast<Element*>(dz.data) + row * dz.row_stride + column, count, values);
}

/// dz of some columns of a row, of segments that take each value alone. A warp.
template <class Element>
__device__ void scale_row(const SegmentGradient& segment, std::int64_t row, int first) {
  const int end = min(first + kGradientColumns, segment.columns);
  for (int column = first + 8 * static_cast<int>(threadIdx.x % 32); column < end;
       column += 8 * 32) {
    const int count = segment.columns - column;
    float d[8], slope[8];
    load_eight<Element>(segment.d_out, segment.fp32, row, column, count, d);
    if (segment.kept == ProjectionKept::kSlope) {
      load_eight<Element>(segment.slope, segment.fp32, row, column, count, slope);
#pragma unroll
      for (int i = 0; i < 8; ++i) d[i] *= slope[i];
    }
    store_eight<Element>(segment.dz, row, column, count, d);
  }
}

/// dz of some heads of a row: inverse_norm (d_out - out <d_out, out>). A warp: neighbouring lanes
/// take eight columns each of one head, as many heads at once as it has lanes for.
template <class Element>
__device__ void project_row(const SegmentGradient& segment, std::int64_t row, int first) {
  const int pieces = segment.head_width / 8;
  int lanes = 1;  // per head
  while (lanes < pieces) lanes *= 2;
  const int lane = threadIdx.x % 32;
  const int begin = first / segment.head_width;
  const int end =
      min(begin + segment.chunk_columns / segment.head_width, segment.columns / segment.head_width);
  for (int at = begin; at < end; at += 32 / lanes) {
    const int head = at + lane / lanes;
    const int piece = lane % lanes;
    const bool works = head < end && piece < pieces;
    const int column = head * segment.head_width + 8 * piece;
    const int count = works ? 8 : 0;
    float d[8], out[8], dot = 0.0f;
    load_eight<Element>(segment.d_out, segment.fp32, row, column, count, d);
    load_eight<Element>(segment.out, segment.fp32, row, column, count, out);
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

template <class Stored>
__device__ Words<Stored> load_words(const MatrixTensor& matrix, std::int64_t row, int column,
                                    bool inside) {
  return cuda::load_words(
      static_cast<const Stored*>(matrix.data) + row * matrix.row_stride + column, inside);
}

/// dz of a chunk of a row where the tensors lie well (SegmentGradient::regular). A warp. All loads
/// are under way before the first is used: they are what takes the time.
template <class Element, class Stored>
__device__ void differentiate_chunk(const SegmentGradient& segment, std::int64_t row, int first) {
  constexpr int kPieces = kGradientColumns / (8 * 32);  // of eight columns, a lane's
  const bool normalized = segment.kept == ProjectionKept::kNormalized;
  const int lane = threadIdx.x % 32;
  Words<Stored> d_out[kPieces], kept[kPieces];
  float inverse[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int column = first + 8 * (lane + 32 * i);
    const bool inside = column < segment.columns;
    d_out[i] = load_words<Stored>(segment.d_out, row, column, inside);
    kept[i] = load_words<Stored>(normalized ? segment.out : segment.slope, row, column,
                                 inside && segment.kept != ProjectionKept::kNothing);
    inverse[i] = 0.0f;
    if (normalized && inside) {
      inverse[i] = static_cast<const float*>(
          segment.inverse_norm
              .data)[row * segment.inverse_norm.row_stride + column / segment.head_width];
    }
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int column = first + 8 * (lane + 32 * i);
    float d[8], other[8];
    unpack<Stored>(d_out[i], d);
    unpack<Stored>(kept[i], other);
    if (normalized) {
      float dot = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) dot = fmaf(d[j], other[j], dot);
      for (int distance = segment.head_width / 16; distance > 0; distance /= 2) {
        dot += __shfl_xor_sync(0xFFFFFFFFu, dot, distance);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] = inverse[i] * (d[j] - other[j] * dot);
    } else if (segment.kept == ProjectionKept::kSlope) {
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] *= other[j];
    }
    if (column < segment.columns) store_eight<Element>(segment.dz, row, column, 8, d);
  }
}

/// A warp per row and chunk of a segment's columns. Chunks first, so that blocks that run at the
/// same time read rows from end to end.
template <class Element>
__global__ __launch_bounds__(32 * kWarps) void projection_gradient_kernel(
    const __grid_constant__ GradientParams params) {
  follow_stream();
  int chunk = static_cast<int>(blockIdx.x), index = 0;
  while (chunk >= params.segments[index].chunks) chunk -= params.segments[index++].chunks;
  const SegmentGradient& segment = params.segments[index];
  const int first = chunk * segment.chunk_columns;
  const std::int64_t stride = std::int64_t{gridDim.y} * kWarps;
  for (std::int64_t row = std::int64_t{blockIdx.y} * kWarps + threadIdx.x / 32; row < params.M;
       row += stride) {
    if (segment.regular) {
      if (segment.fp32) {
        differentiate_chunk<Element, float>(segment, row, first);
      } else {
        differentiate_chunk<Element, Element>(segment, row, first);
      }
    } else if (segment.kept == ProjectionKept::kNormalized) {
      project_row<Element>(segment, row, first);
    } else {
      scale_row<Element>(segment, row, first);
    }
  }
}

/// A CTA per 256 columns and slice of rows. A warp's lanes take eight columns each of a row, of
/// narrow matrices several rows at once.
template <class Element>
__global__ __launch_bounds__(32 * kWarps) void projection_column_sum_kernel(
    const __grid_constant__ ColumnSumParams params) {
  follow_stream();
  __shared__ float sums[kWarps][256];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int lanes = 32;  // of a row
  while (lanes > 1 && 4 * lanes >= params.columns) lanes /= 2;
  const int rows = kWarps * (32 / lanes);  // at once
  const int column = static_cast<int>(blockIdx.x) * 256 + 8 * (lane % lanes);
  const std::int64_t begin = params.M * blockIdx.y / params.slices;
  const std::int64_t end = params.M * (blockIdx.y + 1) / params.slices;
  float sum[8] = {};
#pragma unroll 4
  for (std::int64_t row = begin + warp + lane / lanes * kWarps; row < end; row += rows) {
    float values[8];
    load_eight<Element>(params.matrix, params.fp32, row, column, params.columns - column, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += values[i];
  }
  for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], step);
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

template <class Element>
void launch_gradient(const GradientParams& params, void* stream) {
  constexpr std::int64_t kMostBlocks = 65535;  // of a grid's y
  const std::int64_t blocks = ceil_div(params.M, kWarps);
  int chunks = 0;
  for (const SegmentGradient& segment : params.segments) chunks += segment.chunks;
  if (blocks == 0 || chunks == 0) return;
  launch_kernel("projection_backward", projection_gradient_kernel<Element>,
                {.blocks = static_cast<unsigned>(chunks),
                 .blocks_y = static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks),
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

}  // namespace tandem::cuda::projection
