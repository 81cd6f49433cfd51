// The kernels of projection's backward that are not matrix products: dz from d_out, and sums over
// rows.
#pragma once

#include "cuda/parts/fragment.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/projection/backward_params.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::projection {

constexpr int kWarps = 8;

/// Eight elements as they are stored.
template <class Stored>
struct Words {
  uint4 words[sizeof(Stored) / 2];
};

template <class Stored>
__device__ void unpack(const Words<Stored>& words, float (&values)[8]) {
  const Stored* stored = reinterpret_cast<const Stored*>(&words);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(stored[i]);
}

/// Eight neighbouring elements of a row, or as many as there are and zeros.
template <class Stored>
__device__ void load_eight(const void* row, int column, int count, float (&values)[8]) {
  const Stored* from = static_cast<const Stored*>(row) + column;
  if (count >= 8 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    unpack(*reinterpret_cast<const Words<Stored>*>(from), values);
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

/// dz of some columns of a row, of segments that take each value alone. A warp.
template <class Element>
__device__ void scale_row(const SegmentGradient& segment, std::int64_t row, int first) {
  constexpr int kPieces = kGradientColumns / (8 * 32);  // of eight columns, a lane's
  const bool sloped = segment.kept == ProjectionKept::kSlope;
  float d[kPieces][8], slope[kPieces][8];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int column = first + 8 * (static_cast<int>(threadIdx.x % 32) + 32 * i);
    const int count = segment.columns - column;
    load_eight<Element>(segment.d_out, segment.fp32, row, column, count, d[i]);
    if (sloped) load_eight<Element>(segment.slope, segment.fp32, row, column, count, slope[i]);
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int column = first + 8 * (static_cast<int>(threadIdx.x % 32) + 32 * i);
#pragma unroll
    for (int j = 0; j < 8; ++j) d[i][j] *= sloped ? slope[i][j] : 1.0f;
    store_eight<Element>(segment.dz, row, column, segment.columns - column, d[i]);
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
#pragma unroll 4
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
  Words<Stored> words{};
  const auto* from = reinterpret_cast<const Words<Stored>*>(
      static_cast<const Stored*>(matrix.data) + row * matrix.row_stride + column);
  if (inside) words = *from;
  return words;
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
