// projection_heads_gradient_kernel: dz of heads that end in a weighted RMS norm and a rotation,
// from d_out.
//
//   dy = d_out turned back
//   dz = rstd (g - m mean(g m))     g = dy weight, m = z rstd, the mean over the head
//   d_weight = sum over rows and heads of dy m
//
// A CTA takes a slice of rows; neighbouring lanes take eight columns each of one head, as many
// heads at once as a warp has lanes for. Since a lane has the same columns of each head, it adds up
// d_weight as it goes: of a slice in registers, then over the warps in shared memory. The slices
// are added up by projection_head_sum_kernel. All sums have one order.
//
// A pair's other half is loaded once more: it comes out of the L1. Everything else is read and
// written once, which is what takes the time.
#pragma once

#include "cuda/projection/elementwise.cuh"
#include "cuda/projection/rope.cuh"

namespace tandem::cuda::projection {

/// Loads the table's cosines or sines of eight pairs from j on.
template <class Element>
__device__ void load_turns(const RopeRow<Element>& table, const void* values, int j,
                           float (&turns)[8]) {
  cuda::load_eight<Element>(values, table.fp32, j, 8, turns);
}

/// Turns eight columns of d_out back, whose first is `column` of the head and lies at `at` of the
/// row. Of pairs half a width apart, which are whole eights.
template <class Element>
__device__ void turn_back_eights(const HeadsGradientParams& params, const RopeRow<Element>& table,
                                 std::int64_t row, int at, int column, float (&d)[8]) {
  const int apart = params.rope.width / 2;
  const bool is_first = column < apart;
  float other[8], cos[8], sin[8];
  load_eight<Element>(params.d_out, params.fp32, row, is_first ? at + apart : at - apart, 8, other);
  load_turns(table, table.cos, is_first ? column : column - apart, cos);
  load_turns(table, table.sin, is_first ? column : column - apart, sin);
#pragma unroll
  for (int i = 0; i < 8; ++i) d[i] = d[i] * cos[i] + (is_first ? other[i] : -other[i]) * sin[i];
}

/// The same of any pairs, one by one.
template <class Element>
__device__ void turn_back(const HeadsGradientParams& params, const RopeRow<Element>& table,
                          std::int64_t row, int at, int column, float (&d)[8]) {
  const RopeParams& rope = params.rope;
  const int apart = rope.interleaved ? 1 : rope.width / 2;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int mine = column + i;
    if (mine >= rope.width) continue;
    const bool is_first = rope.interleaved ? mine % 2 == 0 : mine < apart;
    const std::int64_t place = row * params.d_out.row_stride + at + i + (is_first ? apart : -apart);
    const float other =
        params.fp32 ? static_cast<const float*>(params.d_out.data)[place]
                    : static_cast<float>(static_cast<const Element*>(params.d_out.data)[place]);
    const float2 turn = table.one(rope.interleaved ? mine / 2 : is_first ? mine : mine - apart);
    d[i] = d[i] * turn.x + (is_first ? other : -other) * turn.y;
  }
}

template <class Element>
__global__ __launch_bounds__(32 * kWarps) void projection_heads_gradient_kernel(
    const __grid_constant__ HeadsGradientParams params) {
  follow_stream();
  __shared__ float sums[kWarps][32][8];
  const int width = params.head_width, heads = params.columns / width;
  const int pieces = width / 8;
  int lanes = 1;  // per head
  while (lanes < pieces) lanes *= 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int piece = lane % lanes;
  const bool normalizes = params.heads.norm_weight != nullptr;
  const bool in_eights = !params.rope.interleaved && params.rope.width % 16 == 0;
  const bool rotates = params.heads.rotates && piece < pieces && 8 * piece < params.rope.width;
  float weight[8] = {}, sum[8] = {};
  if (normalizes && piece < pieces) {
#pragma unroll
    for (int i = 0; i < 8; ++i) weight[i] = load_norm_weight<Element>(params.heads, 8 * piece + i);
  }
  const std::int64_t begin = params.M * blockIdx.x / params.slices;
  const auto rows = static_cast<unsigned>(params.M * (blockIdx.x + 1) / params.slices - begin);
  const auto per_row = static_cast<unsigned>((heads + 32 / lanes - 1) / (32 / lanes));
  for (unsigned item = warp; item < rows * per_row; item += kWarps) {
    const std::int64_t row = begin + item / per_row;
    const int head = static_cast<int>(item % per_row) * (32 / lanes) + lane / lanes;
    const bool works = head < heads && piece < pieces;
    const int at = head * width + 8 * piece;
    const int count = works ? 8 : 0;
    float d[8], z[8];
    load_eight<Element>(params.d_out, params.fp32, row, at, count, d);
    float rstd = 0.0f;
    if (normalizes) {
      load_eight<Element>(params.pre_norm, false, row, at, count, z);
      if (works) {
        rstd = static_cast<const float*>(params.rstd.data)[row * params.rstd.row_stride + head];
      }
    }
    if (rotates && works) {
      const RopeRow<Element> table(params.rope, rope_position(params.rope, static_cast<int>(row)));
      if (in_eights) {
        turn_back_eights(params, table, row, at, 8 * piece, d);
      } else {
        turn_back(params, table, row, at, 8 * piece, d);
      }
    }
    if (normalizes) {
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        z[i] *= rstd;
        sum[i] = fmaf(d[i], z[i], sum[i]);
        d[i] *= weight[i];
        dot = fmaf(d[i], z[i], dot);
      }
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        dot += __shfl_xor_sync(0xFFFFFFFFu, dot, distance);
      }
      const float mean = dot / static_cast<float>(width);
#pragma unroll
      for (int i = 0; i < 8; ++i) d[i] = rstd * (d[i] - z[i] * mean);
    }
    if (works && params.dz.data != nullptr) store_eight<Element>(params.dz, row, at, 8, d);
  }
  if (params.partial_sums == nullptr) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[warp][lane][i] = sum[i];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= width) return;
  float total = 0.0f;
  for (int of_warp = 0; of_warp < kWarps; ++of_warp) {
    for (int first = 0; first < 32; first += lanes) {
      total += sums[of_warp][first + mine / 8][mine % 8];
    }
  }
  params.partial_sums[std::int64_t{blockIdx.x} * width + mine] = total;
}

constexpr int kSumWarps = 32;

/// A CTA per 32 columns; its warps take every 32nd slice.
template <class Element>
__global__ __launch_bounds__(32 * kSumWarps) void projection_head_sum_kernel(
    const __grid_constant__ HeadSumParams params) {
  follow_stream();
  __shared__ float sums[kSumWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  const bool inside = column < params.head_width;
  float sum = 0.0f;
#pragma unroll 8
  for (int slice = warp; slice < params.slices; slice += kSumWarps) {
    if (inside) sum += params.partial_sums[std::int64_t{slice} * params.head_width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || !inside) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSumWarps; ++i) total += sums[i][lane];
  if (params.fp32) {
    float* to = static_cast<float*>(params.result) + column;
    *to = params.accumulate ? *to + total : total;
  } else {
    Element* to = static_cast<Element*>(params.result) + column;
    *to = static_cast<Element>(params.accumulate ? static_cast<float>(*to) + total : total);
  }
}

template <class Element>
void launch_heads_gradient(const HeadsGradientParams& params, void* stream) {
  launch_kernel("projection_backward", projection_heads_gradient_kernel<Element>,
                {.blocks = static_cast<unsigned>(params.slices), .threads = 32 * kWarps},
                static_cast<cudaStream_t>(stream), params);
}

template <class Element>
void launch_head_sum(const HeadSumParams& params, void* stream) {
  launch_kernel(
      "projection_backward", projection_head_sum_kernel<Element>,
      {.blocks = static_cast<unsigned>(ceil_div(params.head_width, 32)), .threads = 32 * kSumWarps},
      static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::projection
