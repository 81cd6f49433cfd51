// projection_heads_gradient_kernel: dz of heads that end in a weighted RMS norm and a rotation,
// from d_out.
//
//   dy = d_out turned back
//   dz = rstd (g - m mean(g m))     g = dy weight, m = z rstd, the mean over the head
//   d_weight = sum over rows and heads of dy m
//
// A CTA takes a slice of rows of one segment; neighbouring lanes take eight columns each of one
// head, as many heads at once as a warp has lanes for, and four times as many are under way. What a
// row's heads are turned by is loaded once for these; a pair's other half is another lane's. Since
// a lane has the same columns of each head, it adds up d_weight as it goes: of a slice in
// registers, then over the warps in shared memory. The slices are added up by
// projection_head_sum_kernel. All sums have one order.
//
// Everything is read and written once, which is what takes the time.
#pragma once

#include <algorithm>

#include "cuda/projection/elementwise.cuh"
#include "cuda/projection/head_columns.cuh"

namespace tandem::cuda::projection {

/// Loads eight elements of a row.
template <class Loaded>
__device__ Words<Loaded> load_piece(const MatrixTensor& matrix, std::int64_t row, int at,
                                    bool wanted, bool regular) {
  if (regular) return load_words<Loaded>(matrix, row, at, wanted);
  const auto* from = static_cast<const Loaded*>(matrix.data) + row * matrix.row_stride + at;
  Words<Loaded> words{};
  auto* to = reinterpret_cast<Loaded*>(&words);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (wanted) to[i] = from[i];
  }
  return words;
}

/// dz of a CTA's slice of a segment, and its sums of the norm's weight.
template <class Element, class Stored, bool kEights>
__device__ void differentiate_heads(const HeadsGradientParams& params,
                                    const HeadsGradientParams::Segment& segment) {
  constexpr int kAtOnce = kEights ? 8 / sizeof(Stored) : 1;  // heads of a lane
  __shared__ float sums[kWarps][32][8];
  const int width = segment.head_width, heads = segment.columns / width;
  const int lanes = lanes_of_head(width), across = 32 / lanes;  // heads of a warp side by side
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const HeadColumns<Element, kEights> columns{params.rope, segment.heads, width,
                                              8 * (lane % lanes)};
  const bool normalizes = segment.heads.norm_weight != nullptr;
  float weight[8], sum[8] = {};
  if (normalizes) columns.load_weight(weight);
  const std::int64_t begin = params.M * blockIdx.x / segment.slices;
  const auto rows = static_cast<unsigned>(params.M * (blockIdx.x + 1) / segment.slices - begin);
  const auto per_row = static_cast<unsigned>((heads + across * kAtOnce - 1) / (across * kAtOnce));
  for (unsigned item = warp; item < rows * per_row; item += kWarps) {
    const std::int64_t row = begin + item / per_row;
    const int first = static_cast<int>(item % per_row) * across * kAtOnce + lane / lanes;
    const auto head = [&](int i) { return first + i * across; };
    const auto works = [&](int i) { return columns.inside && head(i) < heads; };
    const auto at = [&](int i) { return head(i) * width + columns.column; };
    // why all loads first: they are what takes the time.
    Words<Stored> d_out[kAtOnce];
    Words<Element> pre_norm[kAtOnce];
    float rstd[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      d_out[i] = load_piece<Stored>(segment.d_out, row, at(i), works(i), segment.regular);
      rstd[i] = 0.0f;
      if (!normalizes) continue;
      pre_norm[i] = load_piece<Element>(segment.pre_norm, row, at(i), works(i), segment.regular);
      if (works(i)) {
        rstd[i] =
            static_cast<const float*>(segment.rstd.data)[row * segment.rstd.row_stride + head(i)];
      }
    }
    Turn turn;
    columns.load(turn, row, true);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float d[8];
      unpack<Stored>(d_out[i], d);
      const auto other = [&](int column) {
        const auto* of_head = static_cast<const Stored*>(segment.d_out.data) +
                              row * segment.d_out.row_stride + head(i) * width;
        return works(i) ? static_cast<float>(of_head[column]) : 0.0f;
      };
      columns.apply(turn, other, d);
      if (normalizes) {
        float z[8], dot = 0.0f;
        unpack<Element>(pre_norm[i], z);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          z[j] *= rstd[i];
          sum[j] = fmaf(d[j], z[j], sum[j]);
          d[j] *= weight[j];
          dot = fmaf(d[j], z[j], dot);
        }
        const float mean = sum_of_head(dot, lanes) / static_cast<float>(width);
#pragma unroll
        for (int j = 0; j < 8; ++j) d[j] = rstd[i] * (d[j] - z[j] * mean);
      }
      if (works(i) && segment.dz.data != nullptr) {
        store_eight<Element>(segment.dz, row, at(i), 8, d);
      }
    }
  }
  if (segment.partial_sums == nullptr) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[warp][lane][i] = sum[i];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= width) return;
  float total = 0.0f;
  for (int of_warp = 0; of_warp < kWarps; ++of_warp) {
    for (int of_lane = 0; of_lane < 32; of_lane += lanes) {
      total += sums[of_warp][of_lane + mine / 8][mine % 8];
    }
  }
  segment.partial_sums[std::int64_t{blockIdx.x} * width + mine] = total;
}

template <class Element, bool kEights>
__global__ __launch_bounds__(32 * kWarps, kEights ? 2 : 1) void projection_heads_gradient_kernel(
    const __grid_constant__ HeadsGradientParams params) {
  follow_stream();
  const HeadsGradientParams::Segment& segment = params.segments[blockIdx.y];
  if (static_cast<int>(blockIdx.x) >= segment.slices) return;
  if (segment.fp32) {
    differentiate_heads<Element, float, kEights>(params, segment);
  } else {
    differentiate_heads<Element, Element, kEights>(params, segment);
  }
}

constexpr int kSumWarps = 32;

/// A CTA per segment and 32 columns; its warps take every 32nd slice.
template <class Element>
__global__ __launch_bounds__(32 * kSumWarps) void projection_head_sum_kernel(
    const __grid_constant__ HeadSumParams params) {
  follow_stream();
  __shared__ float sums[kSumWarps][32];
  const HeadSumParams::Segment& segment = params.segments[blockIdx.y];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  const bool inside = column < segment.head_width;
  float sum = 0.0f;
#pragma unroll 8
  for (int slice = warp; slice < segment.slices; slice += kSumWarps) {
    if (inside) sum += segment.partial_sums[std::int64_t{slice} * segment.head_width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || !inside) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSumWarps; ++i) total += sums[i][lane];
  if (segment.fp32) {
    float* to = static_cast<float*>(segment.result) + column;
    *to = params.accumulate ? *to + total : total;
  } else {
    Element* to = static_cast<Element*>(segment.result) + column;
    *to = static_cast<Element>(params.accumulate ? static_cast<float>(*to) + total : total);
  }
}

/// The largest of a value of the segments.
template <class Params, class Value>
unsigned most(const Params& params, const Value& value) {
  int result = 0;
  for (int i = 0; i < params.count; ++i) result = std::max(result, value(params.segments[i]));
  return static_cast<unsigned>(result);
}

template <class Element>
void launch_heads_gradient(const HeadsGradientParams& params, void* stream) {
  launch_kernel("projection_backward",
                in_eights(params.rope) ? projection_heads_gradient_kernel<Element, true>
                                       : projection_heads_gradient_kernel<Element, false>,
                {.blocks = most(params, [](const auto& segment) { return segment.slices; }),
                 .blocks_y = static_cast<unsigned>(params.count),
                 .threads = 32 * kWarps},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element>
void launch_head_sum(const HeadSumParams& params, void* stream) {
  const auto blocks = [](const auto& segment) { return (segment.head_width + 31) / 32; };
  launch_kernel("projection_backward", projection_head_sum_kernel<Element>,
                {.blocks = most(params, blocks),
                 .blocks_y = static_cast<unsigned>(params.count),
                 .threads = 32 * kSumWarps},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::projection
